"""DeltaNet, gated or not: Yang et al. 2024, arXiv:2406.06484 and 2412.06464; levels: 2506.04761.

With levels there is a state for each. At token t those below the level of the last digit 1 of t are
added into it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.literal.convolutions import short_convolution
from tests.literal.gated import both_ends, gated, preconditioned
from tests.literal.heads import joined, normed

USUAL = {
    "causal": [True, False],
    "chunk": [8],
    "length": [1, 8, 21],
    "gate": ["silu", "sigmoid", "none"],
    "convolution": [4, None],
    "negative_eigenvalues": [False, True],
    "bias": [False, True],
    "small": [False, True],
}
RULES = {
    "householders": [1, 2, 3],
    "value_expansion": [1, 2],
    "activation": ["silu", "identity", "relu"],
    "key_norm": ["l2"],
}
SUMS = {**RULES, "activation": ["relu"], "key_norm": ["sum"]}
GRIDS = [{**USUAL, **RULES}, {**USUAL, **SUMS}]


def streams(mixer: Any, x: Tensor, case: Any) -> list[Tensor]:
    """Return q, k and v behind their convolutions and functions."""
    functions = {"silu": F.silu, "relu": F.relu, "identity": lambda y: y}
    parts = []
    for number, layer in enumerate((mixer.q_proj, mixer.k_proj, mixer.v_proj)):
        y = layer(x)
        if len(mixer.convolutions):
            y = short_convolution(y, mixer.convolutions[number].weight)
        parts.append(functions[case.activation](y))
    return parts


def unit(key: Tensor, case: Any) -> Tensor:
    """Norm a key, or a query."""
    if case.key_norm == "sum":
        return key / (key.sum(-1, keepdim=True) + 1e-6)
    return key / (key.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Compute each state from the one before by the paper's formula."""
    count = case.householders

    def read(x: Tensor) -> Tensor:
        q, k, v = streams(mixer, x, case)
        beta = mixer.beta_map(x).sigmoid() * (2 if case.negative_eigenvalues else 1)
        alpha = torch.ones(*x.shape[:2], 3, dtype=x.dtype)
        if hasattr(mixer, "decay_map"):
            steps = F.softplus(mixer.decay_map(x) + mixer.step_bias)
            alpha = (-mixer.log_rate.exp() * steps).exp()
        weights = torch.ones(*x.shape[:2], 3, 1)
        if mixer.levels:
            weights = F.softplus(mixer.level_map(x).unflatten(-1, (3, -1)) * mixer.level_scale)
        q = unit(q.unflatten(-1, (3, -1)), case) * (q.shape[-1] // 3) ** -0.5
        k = unit(k.unflatten(-1, (3, count, -1)), case)
        w = k
        if getattr(case, "precondition", None) is not None:
            factors = preconditioned(mixer, x, k[:, :, :, 0].transpose(1, 2), case)
            w = k * factors.transpose(1, 2)[:, :, :, None]
        comba = getattr(case, "comba", False)
        if comba:
            p = mixer.inner_decay.sigmoid()[:, None] * k[:, :, :, 0]
            q = q - mixer.query_correction[:, None] * p * k.shape[-1] ** -0.5
        v, beta = v.unflatten(-1, (3, count, -1)), beta.unflatten(-1, (3, count))
        nothing = torch.zeros(len(x), 3, v.shape[-1], k.shape[-1], dtype=x.dtype)
        states, outputs, one = [nothing] * weights.shape[-1], [], torch.eye(k.shape[-1]).to(x)
        for t in range(x.shape[1]):
            before = states[0]
            states = [alpha[:, t, :, None, None] * state for state in states]
            level = (t & -t).bit_length() if mixer.levels else 0
            if level:
                states[: level + 1] = [*[nothing] * level, sum(states[:level])]
            if comba:
                error = v[:, t, :, 0, :, None] - before @ p[:, t, :, :, None]
                strength = beta[:, t, :, 0, None, None]
                states = [states[0] + strength * error @ k[:, t, :, 0, None]]
            for j in range(0 if comba else count):
                key, strength = k[:, t, :, j], beta[:, t, :, j, None, None]
                writer = w[:, t, :, j, None]
                still = one - strength * key[..., None] * writer
                states = [state @ still for state in states]
                states[0] = states[0] + strength * v[:, t, :, j, :, None] * writer
            seen = sum(weights[:, t, :, n, None, None] * s for n, s in enumerate(states))
            outputs.append((seen @ q[:, t, :, :, None])[..., 0])
        return torch.stack(outputs, 2)

    return gated(
        mixer, joined(normed(both_ends(read, x, case), mixer.norm.weight, mixer.norm.epsilon)), x
    )

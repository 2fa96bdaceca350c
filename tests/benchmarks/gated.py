"""Gated recurrences and delta rules beside loops over tokens, public chunked forms and attention.

    PYTHONPATH=.:tests/parity python tests/benchmarks/gated.py --json ROWS

One training step (forward, backward) on one thread of what heads read, without projections: 2 rows
of 4,096 tokens, 4 heads of 32. A scalar gate is that of RetNet and Mamba-2. The loops go through
the equations token by token: one takes tokens apart at once, the other cuts each by its number, as
public plain forms do, whose backward pass then adds up a whole gradient for every token. The
chunked forms are those of transformers and flash-linear-attention in PyTorch alone, where these
are installed (pip install transformers einops; pip install --no-deps fla-core); attention is
PyTorch's causal SDPA. Samples are interleaved, in CPU time of the process; ratios are time of the
other form by time of ours. Aimed at: 20 of the loops that cut, 2 and 8 of transformers' Gated
DeltaNet and Kimi forms, 5 of flash-linear-attention's, 6.7 of attention by a scalar gate, 2.5 by
the others.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.delta_product import delta_product
from peers.flash_linear import file_of
from tests.benchmarks.frame import Forms, compare, trained

ROWS, HEADS, WIDTH = 2, 4, 32
SCALE = WIDTH**-0.5
CHUNKED = {
    "scalar gate": {"fla": ("simple_gla", "naive_chunk_simple_gla")},
    "GLA": {},
    "Gated DeltaNet": {
        "transformers": ("qwen3_next", "torch_chunk_gated_delta_rule"),
        "fla": ("gated_delta_rule", "naive_chunk_gated_delta_rule"),
    },
    "Kimi": {
        "transformers": ("kimi_linear", "chunk_kimi_delta_attention"),
        "fla": ("kda", "naive_chunk_kda"),
    },
}
"""Where transformers and flash-linear-attention have their forms in chunks."""


def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None = None) -> Tensor:
    """Return what queries read in chunks, of a plain state or of one under the delta rule."""
    if beta is None:
        return decayed_product(q * SCALE, k, v, g, chunk=64 if g.ndim == 3 else 32)[0]
    return delta_product(q * SCALE, k, k * beta[..., None], v, g)[0]


def sliced(x: Tensor) -> Iterator[Tensor]:
    """Return each token of a tensor by its number."""
    return (x[:, :, t] for t in range(x.shape[2]))


def unbound(x: Tensor) -> Iterator[Tensor]:
    """Return the tokens of a tensor, taken apart at once."""
    return iter(x.unbind(2))


def loop(tokens: Callable[[Tensor], Iterator[Tensor]], *inputs: Tensor) -> Tensor:
    """Return the same token by token."""
    q, k, v, g = inputs[:4]
    state, outputs = q.new_zeros(*q.shape[:2], WIDTH, WIDTH), []
    decays = g.exp()[..., None] if g.ndim == 4 else g.exp()[..., None, None]
    betas = tokens(inputs[4]) if len(inputs) == 5 else iter(())
    for query, key, value, decay in zip(*map(tokens, (q * SCALE, k, v, decays)), strict=True):
        state = state * decay
        if (beta := next(betas, None)) is not None:
            value = beta[..., None] * (value - (key[..., None] * state).sum(-2))
        state = state + key[..., None] * value[..., None, :]
        outputs.append((query[..., None] * state).sum(-2))
    return torch.stack(outputs, 2)


def chunked(package: str, name: str, function: str) -> Callable[..., Tensor] | None:
    """Return a public form in our order of axes, None where its package is not installed."""
    if importlib.util.find_spec(package) is None:
        return None
    if package == "transformers":
        module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    else:
        module = file_of(name)
    form = getattr(module, function)

    def theirs(*inputs: Tensor) -> Tensor:
        q, k, v, *gates = (x.transpose(1, 2) for x in inputs)
        o: Tensor = form(q, k, v, **dict(zip(("g", "beta"), gates, strict=False)))[0]
        return o.transpose(1, 2)

    return theirs


def comparisons(tokens: int) -> dict[str, Forms]:
    """Return what is compared at a number of tokens; every other recurrence has agreed with ours.

    Raises:
        ValueError: One did not.
    """
    shape = ROWS, HEADS, tokens
    q, v = torch.randn(2, *shape, WIDTH).unbind()
    k = F.normalize(torch.randn(*shape, WIDTH), dim=-1)
    scalar, vector = (F.logsigmoid(torch.randn(*shape, *end)) / 16 for end in ((), (WIDTH,)))
    beta = torch.rand(shape)
    recurrences = {
        "scalar gate": (q, k, v, scalar),
        "GLA": (q, k, v, vector),
        "Gated DeltaNet": (q, k, v, scalar, beta),
        "Kimi": (q, k, v, vector, beta),
    }
    attention = partial(F.scaled_dot_product_attention, is_causal=True)
    compared: dict[str, Forms] = {}
    for name, given in recurrences.items():
        leaves = [each.clone().requires_grad_() for each in given]
        step = partial(trained, partial(ours, *leaves), leaves)
        others: dict[str, Callable[..., Tensor] | None] = {
            "loop that cuts tokens": partial(loop, sliced),
            "loop over tokens taken apart": partial(loop, unbound),
            **{
                f"chunks of {package}": chunked(package, *where)
                for package, where in CHUNKED[name].items()
            },
        }
        for other, form in others.items():
            if form is None:
                continue
            with torch.no_grad():
                here, there = ours(*given), form(*given)
            if (far := (here - there).abs().max() / there.abs().max()) > 1e-4:
                raise ValueError(f"{name} and its {other} differ by {far:.2g} of the largest")
            compared[f"{name}, {other}"] = step, partial(trained, partial(form, *leaves), leaves)
        exact = partial(trained, partial(attention, *leaves[:3]), leaves[:3])
        compared[f"{name}, causal SDPA"] = step, exact
    return compared


if __name__ == "__main__":
    compare(__doc__, comparisons)

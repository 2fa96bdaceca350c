"""Recurrences with decays as their papers write them: token by token."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.convolutions import short_convolution


def decayed_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"],
    *,
    state: Float[Tensor, "b h k v"],
    keep: Bool[Tensor, "b l"] | None = None,
    before: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h k v"]]:
    """S_t = exp(g_t) S_(t-1) + k_t v_t^T, o_t = S_t^T q_t; `before`: S_(t-1)^T q_t.

    Padding leaves S as it was.
    """
    outputs = []
    for t in range(q.shape[2]):
        decay = g[:, :, t, None] if g.ndim == 3 else g[:, :, t]
        after = decay.exp()[..., None] * state + k[:, :, t, :, None] * v[:, :, t, None]
        if keep is not None:
            after = torch.where(keep[:, t, None, None, None], after, state)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state if before else after))
        state = after
    return torch.stack(outputs, 2), state


def delta_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    w: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"],
    *,
    u: Float[Tensor, "b h l k"] | None = None,
    state: Float[Tensor, "b h k v"],
    keep: Bool[Tensor, "b l"] | None = None,
    early: bool = False,
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h k v"]]:
    """S = exp(g_t) S_(t-1), S_t = S + w_t (v_t - S^T k_t)^T, o_t = S_t^T q_t.

    With u, S_t = S - w_t (S^T k_t)^T + u_t v_t^T; `early`, k_t reads S_(t-1) instead of S. Padding
    leaves S as it was.
    """
    outputs = []
    for t in range(q.shape[2]):
        decay = g[:, :, t, None] if g.ndim == 3 else g[:, :, t]
        decayed = decay.exp()[..., None] * state
        read = torch.einsum("bhk,bhkv->bhv", k[:, :, t], state if early else decayed)
        error = v[:, :, t] - read if u is None else -read
        after = decayed + w[:, :, t, :, None] * error[:, :, None]
        if u is not None:
            after = after + u[:, :, t, :, None] * v[:, :, t, None]
        if keep is not None:
            after = torch.where(keep[:, t, None, None, None], after, state)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], after))
        state = after
    return torch.stack(outputs, 2), state


def preconditioned(
    mixer: Any, x: Float[Tensor, "b l d"], k: Float[Tensor, "b h l k"], case: Any
) -> Float[Tensor, "b h l k"]:
    """Return x^(-r / (1 + |r|)) by token; r is the log of decaying squares of keys minus c."""
    layer, factors = mixer.preconditioner, []
    moment = torch.zeros_like(k[:, :, 0])
    for t in range(k.shape[2]):
        step = torch.log1p((layer.decay_map(x[:, t]) + layer.step_bias).exp())
        decay = (-layer.log_rate.exp() * step).exp()
        moment = decay[..., None] * moment
        moment = moment + layer.rate_map(x[:, t]).sigmoid()[..., None] * k[:, :, t] ** 2
        r = (moment + 1e-6).log() - layer.centre[:, None]
        factors.append(case.precondition ** (-r / (1 + r.abs())))
    return torch.stack(factors, 2)


def log_linear_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"],
    weights: Float[Tensor, "b h l n"],
) -> Float[Tensor, "b h l v"]:
    """o_i = sum_(j <= i) lambda_i^n (q_i · k_j) exp(g_(j+1) + ... + g_i) v_j, pair by pair.

    n is the number of binary digits of i XOR j, or the last level.
    """
    outputs = []
    for i in range(q.shape[2]):
        o = torch.zeros_like(v[:, :, 0])
        for j in range(i + 1):
            level = min((i ^ j).bit_length(), weights.shape[3] - 1)
            score = (q[:, :, i] * k[:, :, j]).sum(-1) * g[:, :, j + 1 : i + 1].sum(-1).exp()
            o = o + (weights[:, :, i, level] * score)[..., None] * v[:, :, j]
        outputs.append(o)
    return torch.stack(outputs, 2)


def log_linear_delta_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    g: Float[Tensor, "b h l"],
    weights: Float[Tensor, "b h l n"],
    *,
    w: Float[Tensor, "b h l k"],
) -> Float[Tensor, "b h l v"]:
    """o_i = sum_(j <= i) lambda_i^n (q_i · M_i ... M_(j+1) w_j) v_j, pair by pair.

    M_t = exp(g_t) (1 - w_t k_t^T), and n is as above.
    """
    outputs = [torch.zeros_like(v[:, :, 0])] * q.shape[2]
    for j in range(q.shape[2]):
        left = w[:, :, j]
        for i in range(j, q.shape[2]):
            if i > j:
                seen = (k[:, :, i] * left).sum(-1, keepdim=True)
                left = g[:, :, i, None].exp() * (left - w[:, :, i] * seen)
            level = min((i ^ j).bit_length(), weights.shape[3] - 1)
            weight = weights[:, :, i, level] * (q[:, :, i] * left).sum(-1)
            outputs[i] = outputs[i] + weight[..., None] * v[:, :, j]
    return torch.stack(outputs, 2)


def exponential_product(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    forget: Float[Tensor, "b h l"],
    enter: Float[Tensor, "b h l"],
    *,
    keep: Bool[Tensor, "b l"] | None = None,
) -> Float[Tensor, "b h l v"]:
    """S = exp(f) S + exp(i) k v^T, z = exp(f) z + exp(i) k, o = S^T q / max(|z · q|, 1).

    In plain exponentials, which float64 holds for gates of ordinary size; from nothing.
    """
    state = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])
    total, outputs = q.new_zeros(*q.shape[:2], q.shape[3]), []
    for t in range(q.shape[2]):
        left, taken = forget[:, :, t].exp(), enter[:, :, t].exp()
        if keep is not None:
            left = torch.where(keep[:, t, None], left, 1)
            taken = torch.where(keep[:, t, None], taken, 0)
        key = taken[..., None] * k[:, :, t]
        state = left[..., None, None] * state + key[..., None] * v[:, :, t, None]
        total = left[..., None] * total + key
        read = torch.einsum("bhk,bhkv->bhv", q[:, :, t], state)
        seen = (q[:, :, t] * total).sum(-1, keepdim=True).abs()
        outputs.append(read / seen.clamp(min=1))
    return torch.stack(outputs, 2)


def convolved(
    mixer: Any, number: int, y: Float[Tensor, "b l d"], *, always: bool = False
) -> Float[Tensor, "b l d"]:
    """Return SiLU of a causal convolution of each channel where there is one, or `always`."""
    if len(mixer.convolutions):
        layer = mixer.convolutions[number]
        y = short_convolution(y, layer.weight, getattr(layer, "bias", None))
    return y * y.sigmoid() if always or len(mixer.convolutions) else y


def gated(
    mixer: Any, y: Float[Tensor, "b l v"], x: Float[Tensor, "b l d"]
) -> Float[Tensor, "b l d"]:
    """Return what heads read, times the gate of the layer's input, projected back."""
    if mixer.norm.gate != "none":
        gate = mixer.gate_proj(x)
        y = y * gate.sigmoid() * (gate if mixer.norm.gate == "silu" else 1)
    return mixer.out_proj(y)


def both_ends(
    read: Callable[[Float[Tensor, "b l d"]], Tensor], x: Float[Tensor, "b l d"], case: Any
) -> Tensor:
    """Return what is read from the start, and where the case is not causal from the end besides."""
    o = read(x)
    return o if case.causal else o + read(x.flip(1)).flip(-2)

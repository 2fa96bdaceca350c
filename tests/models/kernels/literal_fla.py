"""Slow forms with the arguments of flash-linear-attention's kernels, token by token.

Rows are (b, l, h, ·), states (b, h, k, v) and decays logarithms; queries are multiplied by
k^(-1/2) unless `scale` says otherwise. With `late`, which the package does not have, a token decays
the state after it wrote: a fault to be planted.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Write = Callable[[Tensor, Tensor, int], Tensor]
"""From the state before and after the decay, and the number of a token, to the state behind it."""


def read_states(
    q: Tensor,
    v: Tensor,
    g: Tensor,
    write: Write,
    *,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    late: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return S_t^T q_t of each token, and the last state; g is (b, l, h, k) or (b, l, h, 1)."""
    batch, length, heads, width = q.shape
    scale = width**-0.5 if scale is None else scale
    state = q.new_zeros(batch, heads, width, v.shape[-1], dtype=torch.float32)
    if initial_state is not None:
        assert initial_state.dtype == torch.float32
        assert initial_state.shape == state.shape
        state = state + initial_state
    outputs = []
    for t in range(length):
        decay = g[:, t].float().exp()[..., None]
        state = decay * write(state, state, t) if late else write(state, decay * state, t)
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t].float() * scale, state))
    return torch.stack(outputs, 1).to(v.dtype), state if output_final_state else None


def outer(k: Tensor, v: Tensor) -> Tensor:
    return k.float()[..., :, None] * v.float()[..., None, :]


def look_up(state: Tensor, k: Tensor) -> Tensor:
    return (state * k.float()[..., None]).sum(-2)


def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    late: bool = False,
) -> tuple[Tensor, Tensor | None]:
    assert q.dtype == k.dtype == v.dtype
    assert v.dtype == torch.float32 or not (q.shape[-1] % 2 or v.shape[-1] % 2)
    assert g is None or g_gamma is None
    if g is None:
        g = q.new_zeros(q.shape[:3]) if g_gamma is None else g_gamma.expand(q.shape[:3])
    return read_states(
        q, v, g[..., None], lambda _, state, t: state + outer(k[:, t], v[:, t]),
        scale=scale, initial_state=initial_state, output_final_state=output_final_state, late=late,
    )  # fmt: skip


def chunk_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    assert q.shape == k.shape == g.shape
    return read_states(
        q, v, g, lambda _, state, t: state + outer(k[:, t], v[:, t]),
        late=options.pop("late", False), **options,
    )  # fmt: skip


def _delta(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    assert q.shape == k.shape
    assert beta.shape == v.shape[:3]

    def write(_: Tensor, state: Tensor, t: int) -> Tensor:
        error = v[:, t].float() - look_up(state, k[:, t])
        return state + outer(k[:, t], beta[:, t].float()[..., None] * error)

    return read_states(q, v, g, write, late=options.pop("late", False), **options)


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    assert g.shape == v.shape[:3]
    return _delta(q, k, v, g[..., None], beta, **options)


def chunk_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    assert g.shape == q.shape
    return _delta(q, k, v, g, beta, **options)


def chunk_comba(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, *, g: Tensor, beta: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """p reads the state before the decay."""
    assert g.shape == beta.shape == v.shape[:3]

    def write(before: Tensor, state: Tensor, t: int) -> Tensor:
        error = v[:, t].float() - look_up(before, p[:, t])
        return state + outer(k[:, t], beta[:, t].float()[..., None] * error)

    return read_states(q, v, g[..., None], write, late=options.pop("late", False), **options)


def chunk_dplr_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, *, gk: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """a reads the state before the decay, and b adds what it read."""
    assert q.shape == k.shape == a.shape == b.shape == gk.shape

    def write(before: Tensor, state: Tensor, t: int) -> Tensor:
        return state + outer(b[:, t], look_up(before, a[:, t])) + outer(k[:, t], v[:, t])

    return read_states(q, v, gk, write, late=options.pop("late", False), **options)


def chunk_log_linear_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    level_scales: Tensor,
    *,
    scale: float | None = 1.0,
    late: bool = False,
) -> tuple[Tensor, None]:
    length = q.shape[1]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    outputs = []
    for i in range(length):
        o = torch.zeros_like(v[:, i], dtype=torch.float32)
        for j in range(i + 1):
            decay = g[:, (j if late else j + 1) : i + 1].float().sum(1).exp()
            level = level_scales[:, i, :, (i ^ j).bit_length()].float()
            score = (q[:, i].float() * k[:, j].float()).sum(-1) * scale * decay * level
            o = o + score[..., None] * v[:, j].float()
        outputs.append(o)
    return torch.stack(outputs, 1).to(v.dtype), None


def chunk_gsa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s: Tensor,
    g: Tensor,
    *,
    scale: float | None = None,
    initial_state: tuple[Tensor, Tensor] | None = None,
    output_final_state: bool = False,
    late: bool = False,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    batch, length, heads, width = q.shape
    keys = q.new_zeros(batch, heads, width, s.shape[-1], dtype=torch.float32)
    values = q.new_zeros(batch, heads, s.shape[-1], v.shape[-1], dtype=torch.float32)
    if initial_state is not None:
        assert initial_state[0].shape == keys.shape
        assert initial_state[1].shape == values.shape
        keys, values = initial_state
    outputs = []
    for t in range(length):
        decay = g[:, t].float().exp()
        if not late:
            keys, values = keys * decay[..., None, :], values * decay[..., None]
        keys, values = keys + outer(k[:, t], s[:, t]), values + outer(s[:, t], v[:, t])
        if late:
            keys, values = keys * decay[..., None, :], values * decay[..., None]
        weights = (look_up(keys, q[:, t]) * scale).softmax(-1)
        outputs.append(look_up(values, weights))
    assert output_final_state
    return torch.stack(outputs, 1).to(v.dtype), (keys, values)


def chunk_mesa_net(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    lamb: Tensor,
    h_kk_init: Tensor | None = None,
    h_kv_init: Tensor | None = None,
    output_final_state: bool = False,
    max_CG_iteration: int = 30,
    late: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Solves exactly, whatever the number of steps."""
    assert output_final_state
    assert max_CG_iteration >= q.shape[-1]
    assert lamb.shape == q.shape[2:]
    zeros = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], q.shape[3], dtype=torch.float32)
    keys = zeros if h_kk_init is None else h_kk_init
    values = zeros if h_kv_init is None else h_kv_init
    outputs = []
    for t in range(q.shape[1]):
        before = after = g[:, t].float().exp()[..., None, None]
        before, after = (
            (torch.ones_like(before), after) if late else (before, torch.ones_like(after))
        )
        weighted = beta[:, t].float()[..., None] * k[:, t].float()
        keys = (keys * before + outer(weighted, k[:, t])) * after
        values = (values * before + outer(weighted, v[:, t])) * after
        solved = torch.linalg.solve(keys + torch.diag_embed(lamb), q[:, t].float())
        outputs.append(look_up(values, solved))
    return torch.stack(outputs, 1).to(v.dtype), keys, values

"""Kernels of flash-linear-attention for states that decay: `decayed_product`.

A decay that is the same for all tokens is their `g_gamma`. Where states are read before a token's
own key, queries are shifted around the kernel, as around our own form.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lra.models.kernels.fla_layout import (
    by_token,
    common_limits,
    finite_decays,
    fla_kernel,
    odd_width,
)
from lra.models.ops.gated.blockwise import first_state
from lra.models.ops.gated.decayed_product import Reads, next_queries, reads_before
from lra.models.ops.numerics import without_padding


def _takes_head(q: Tensor, v: Tensor, g: Tensor, **_: Any) -> str:
    if g.ndim == 4:
        return "it is for decays of a head"
    return common_limits(q, v) or odd_width(q, v)


def _takes_channel(q: Tensor, v: Tensor, g: Tensor, **_: Any) -> str:
    return common_limits(q, v) if g.ndim == 4 else "it is for decays of every channel"


def _call(
    function: Callable[..., tuple[Tensor, Tensor]],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    state: Tensor | None,
    keep: Tensor | None,
    reads: Reads,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    before = reads == Reads.before
    k, v = without_padding(k, keep), without_padding(v, keep)
    if g.ndim == 1 and keep is not None:
        g = g[:, None].expand(q.shape[:3])
    decay = {"g_gamma": g.float()} if g.ndim == 1 else {"g": finite_decays(g, keep)}
    rows = (by_token(x).to(v.dtype) for x in (next_queries(q) if before else q, k, v))
    o, last = function(*rows, **decay, scale=1.0, initial_state=state, output_final_state=True)
    o = by_token(o).to(v.dtype)
    return reads_before(q, o, first_state(q, v, state)) if before else o, last


KERNELS = (
    fla_kernel("decayed_product", "simple_gla:chunk_simple_gla", _takes_head, _call),
    fla_kernel("decayed_product", "gla:chunk_gla", _takes_channel, _call),
)

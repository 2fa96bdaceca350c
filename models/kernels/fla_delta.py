"""Kernels of flash-linear-attention for the delta rule: `delta_product`.

With w = beta k, that is `chunk_gated_delta_rule`, or `chunk_kda` where every channel decays. Tokens
that write several times are rows one after another, which both take as they are. With `early` and
a decay of each head, `chunk_comba` reads by its p and writes by its k, so p = k, k = w, beta = 1.
`chunk_dplr_delta_rule` has all other cases,

    S_t = D_t S_(t-1) + b_t (a_t^T S_(t-1)) + k_t v_t^T         its a, b and k

where a reads the state before the decay: ours are k^T D S = (D k)^T S, so a = D k, or k with
`early`; b = -w; and its k is u, or w where w writes the whole error.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lra.models.kernels.fla_layout import by_token, common_limits, finite_decays, fla_kernel
from lra.models.ops.gated.blockwise import decays_of_tokens
from lra.models.ops.numerics import without_padding

Function = Callable[..., tuple[Tensor, Tensor]]


def _takes_rule(
    q: Tensor, w: Tensor | None, v: Tensor, g: Tensor, *, u: Tensor | None, early: bool,
    by_channel: bool, **_: Any,
) -> str:  # fmt: skip
    if w is not None or u is not None or early:
        return "it writes by beta k, and reads by k after the decay"
    if (g.ndim == 4) != by_channel:
        return "it is for decays of every channel" if by_channel else "it is for decays of a head"
    return common_limits(q, v)


def _takes_early(
    q: Tensor, v: Tensor, g: Tensor, *, u: Tensor | None, early: bool, **_: Any
) -> str:
    if not early or u is not None or g.ndim == 4:
        return "it is for tokens that read before a decay of the head and write by one key"
    return common_limits(q, v)


def _takes_general(q: Tensor, v: Tensor, **_: Any) -> str:
    return common_limits(q, v, half=True)


def _writers(k: Tensor, w: Tensor | None, beta: Tensor | None) -> Tensor:
    return beta[..., None] * k if w is None else w  # type: ignore[index]


def _run(
    function: Function,
    q: Tensor,
    *rows: Tensor,
    v: Tensor,
    state: Tensor | None,
    keep: Tensor | None,
    **gates: Tensor,
) -> tuple[Tensor, Tensor]:
    """Call `function` for queries, rows of keys and values, without padding, and their gates."""
    k, *others, values = (by_token(without_padding(x, keep)).to(v.dtype) for x in (*rows, v))
    o, last = function(
        by_token(q).to(v.dtype), k, values, *others, **gates,
        scale=1.0, initial_state=state, output_final_state=True,
    )  # fmt: skip
    return by_token(o).to(v.dtype), last


def _call_rule(
    function: Function, *, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
    state: Tensor | None, keep: Tensor | None, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    gates = {"g": finite_decays(g, keep), "beta": by_token(decays_of_tokens(beta, keep)).float()}
    return _run(function, q, k, v=v, state=state, keep=keep, **gates)


def _call_early(
    function: Function, *, q: Tensor, k: Tensor, w: Tensor | None, v: Tensor, g: Tensor,
    beta: Tensor | None, state: Tensor | None, keep: Tensor | None, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    decay, w = finite_decays(g, keep), _writers(k, w, beta)
    ones = torch.ones_like(decay)
    return _run(function, q, w, k, v=v, state=state, keep=keep, g=decay, beta=ones)


def _call_general(
    function: Function, *, q: Tensor, k: Tensor, w: Tensor | None, v: Tensor, g: Tensor,
    beta: Tensor | None, u: Tensor | None, state: Tensor | None, keep: Tensor | None, early: bool,
    **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    w = _writers(k, w, beta)
    decay = finite_decays(g if g.ndim == 4 else g[..., None].expand(q.shape), keep)
    reader = k if early else k.float() * by_token(decay).exp()
    return _run(
        function, q, w if u is None else u, reader, -w, v=v, state=state, keep=keep, gk=decay
    )


KERNELS = (
    fla_kernel(
        "delta_product", "gated_delta_rule:chunk_gated_delta_rule",
        partial(_takes_rule, by_channel=False), _call_rule,
    ),
    fla_kernel("delta_product", "kda:chunk_kda", partial(_takes_rule, by_channel=True), _call_rule),
    fla_kernel("delta_product", "comba:chunk_comba", _takes_early, _call_early),
    fla_kernel(
        "delta_product", "generalized_delta_rule:chunk_dplr_delta_rule", _takes_general,
        _call_general,
    ),
)  # fmt: skip

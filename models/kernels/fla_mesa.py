"""A kernel of flash-linear-attention for MesaNet: `least_squares`, which solves and reads at once.

Ours divides queries and keys by the root r of Lambda: its states are H_ij / (r_i r_j) and G_i / r_i
where theirs are H and G. Theirs stops after as many steps of conjugate gradients, on a system that
is not divided, and takes q and k in float16.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lra.models.kernels.fla_layout import by_token, common_limits, finite_decays, fla_kernel
from lra.models.ops.gated.blockwise import decays_of_tokens
from lra.models.ops.numerics import without_padding


def _takes(q: Tensor, v: Tensor, **_: Any) -> str:
    if q.shape[-1] != v.shape[-1]:
        return f"keys and values must be as wide: {q.shape[-1]} and {v.shape[-1]} channels"
    return common_limits(q, v)


def _call(
    function: Callable[..., tuple[Tensor, Tensor, Tensor]],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor,
    ridge: Tensor,
    before: tuple[Tensor | None, Tensor | None],
    steps: int,
    keep: Tensor | None,
    **_: Any,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    root = ridge.float().sqrt()[..., None]
    old_h, old_g = before
    rows = (by_token(x).to(v.dtype) for x in (q, without_padding(k, keep), v))
    o, h, g = function(
        *rows,
        g=finite_decays(g, keep),
        beta=by_token(decays_of_tokens(beta, keep)).float(),
        lamb=ridge.float(),
        h_kk_init=None if old_h is None else old_h * root * root.mT,
        h_kv_init=None if old_g is None else old_g * root,
        output_final_state=True,
        max_CG_iteration=steps,
    )
    return by_token(o).to(v.dtype), (h / (root * root.mT), g / root)


KERNELS = (fla_kernel("least_squares", "mesa_net:chunk_mesa_net", _takes, _call),)

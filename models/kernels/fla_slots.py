"""A kernel of flash-linear-attention for memory slots: `slot_attention`.

Our state has keys and values of slots side by side, (b, h, m, k + v); theirs are two, the first
transposed: (b, h, k, m) and (b, h, m, v).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lra.models.kernels.fla_layout import (
    by_token,
    common_limits,
    finite_decays,
    fla_kernel,
    too_wide,
)
from lra.models.ops.numerics import without_padding


def _takes(q: Tensor, v: Tensor, s: Tensor, **_: Any) -> str:
    return common_limits(q, v) or too_wide("slots", s.shape[-1])


def _call(
    function: Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    s: Tensor,
    g: Tensor,
    state: Tensor | None,
    keep: Tensor | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    width, past = k.shape[-1], None
    if state is not None:
        past = state[..., :width].mT.contiguous(), state[..., width:].contiguous()
    rows = (q, *(without_padding(x, keep) for x in (k, v, s)))
    o, (keys, values) = function(
        *(by_token(x).to(v.dtype) for x in rows), finite_decays(g, keep),
        scale=1.0, initial_state=past, output_final_state=True,
    )  # fmt: skip
    return by_token(o).to(v.dtype), torch.cat((keys.mT, values), -1)


KERNELS = (fla_kernel("slot_attention", "gsa:chunk_gsa", _takes, _call),)

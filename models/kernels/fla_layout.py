"""How calls of flash-linear-attention are made from ours.

Ours have rows (b, h, l, ·), theirs (b, l, h, ·); `scale` is 1, because our queries come scaled; g
is the logarithm of the decay in both, and states are (b, h, k, v) in both, float32 in theirs. A
decay of 0 is -inf in ours, which their running sums cannot hold: exp(FORGOTTEN) stands for it.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lra.models.kernels.kernel import PublicKernel
from lra.models.ops.gated.blockwise import decays_of_tokens

FORGOTTEN = -60.0
"""A factor of exp(-60) = 9e-27 forgets everything, and sums of it keep six digits of others."""
WIDEST = 256
"""Widest heads of the kernels that were read."""


def fla_kernel(
    operation: str, function: str, takes: Callable[..., str], call: Callable[..., Any]
) -> PublicKernel:
    """Return a kernel of this package; `function` is module:name below `fla.ops`."""
    return PublicKernel(operation, "fla-core", ("0.6",), f"fla.ops.{function}", takes, call)


def by_token(x: Tensor) -> Tensor:
    """Return rows (b, h, l, ...) as (b, l, h, ...), or the other way round."""
    return x.transpose(1, 2)


def finite_decays(g: Tensor, keep: Tensor | None) -> Tensor:
    """Return log decays (b, h, l, ...) as (b, l, h, ...) without -inf, and 0 at padding."""
    return by_token(decays_of_tokens(g.clamp(min=FORGOTTEN), keep)).float()


def common_limits(q: Tensor, v: Tensor, *, half: bool = False) -> str:
    """Return why heads or dtypes are refused; "" if they are not.

    Args:
        q: Queries, of the width of keys.
        v: Values, in whose dtype the kernel computes.
        half: Whether it has half precision only.
    """
    if torch.float64 in {q.dtype, v.dtype}:
        return "it has no float64"
    if half and v.dtype == torch.float32:
        return "it has bfloat16 and float16 only"
    return too_wide("heads", q.shape[-1], v.shape[-1])


def too_wide(what: str, *widths: int) -> str:
    """Return why heads, features or slots of these widths are refused; "" if they are not."""
    return f"{what} of width {max(widths)} are wider than {WIDEST}" if max(widths) > WIDEST else ""


def odd_width(q: Tensor, v: Tensor) -> str:
    """Return why a kernel refuses odd widths of heads in half precision; "" if all are even."""
    odd = [x.shape[-1] for x in (q, v) if x.shape[-1] % 2]
    if v.dtype == torch.float32 or not odd:
        return ""
    return f"in half precision it has even widths of heads only, not {odd[0]}"

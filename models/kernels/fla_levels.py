"""A kernel of flash-linear-attention for states by levels: `log_linear_product`.

Its level of a pair of tokens is ours, the number of binary digits of i XOR j. It computes no delta
rule, and continues no state with gradients, so `log_linear_steps` has no kernel.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lra.models.kernels.fla_layout import by_token, common_limits, finite_decays, fla_kernel
from lra.models.ops.gated.log_linear import level_count
from lra.models.ops.numerics import sum_dtype, without_padding

BLOCK = 64
"""Tokens of its chunks, whose levels it always reads; also channels of keys in one product."""
LONGEST = 2**17
"""It computes shorter sequences than this."""


def _takes(q: Tensor, v: Tensor, weights: Tensor, w: Tensor | None, **_: Any) -> str:
    length, (key, value) = q.shape[2], (q.shape[-1], v.shape[-1])
    if w is not None:
        return "it has no delta rule"
    if length >= LONGEST:
        return f"{length} tokens are too long for it, which takes fewer than {LONGEST}"
    wanted = level_count(max(length, BLOCK))
    if weights.shape[3] < wanted:
        return f"it needs {wanted} levels for {length} tokens, not {weights.shape[3]}"
    if key % BLOCK:
        return f"keys must have a multiple of {BLOCK} channels, not {key}"
    if value & (value - 1):
        return f"values must have a power of two of channels, not {value}"
    return common_limits(q, v)


def _call(
    function: Callable[..., tuple[Tensor, Any]],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    weights: Tensor,
    keep: Tensor | None,
    **_: Any,
) -> Tensor:
    rows = (by_token(x).to(v.dtype) for x in (q, without_padding(k, keep), v))
    o, _ = function(*rows, finite_decays(g, keep), by_token(weights).float(), scale=1.0)
    return by_token(o).to(sum_dtype(v))


KERNELS = (
    fla_kernel("log_linear_product", "log_linear_attn:chunk_log_linear_attn", _takes, _call),
)

"""A tree of short convolutions at growing distances: all levels share the same two kernels.

    lo_0 = x
    hi_i = h1 * lo_{i-1},  lo_i = h0 * lo_{i-1}      taps of level i stand 2^(i-1) tokens apart
    y = sum_i w_i hi_i + w_{J+1} lo_J + w_{J+2} x,   i = 1, ... J

With k taps, J levels reach (k - 1) (2^J - 1) tokens back. 4 n d k J operations, without a
transform; kept for the backward pass are 2 n d J numbers.

Source     Shi et al. 2023, arXiv:2305.01638, the memory that fades.
"""

from collections.abc import Sequence

from jaxtyping import Float, Int
from torch import Tensor

from lra.models.ops.convolution.short import sum_taps, tap_inputs
from lra.models.ops.numerics import sum_dtype


def depth_for(length: int, taps: int) -> int:
    """Return the least J for which the last of `length` tokens depends on the first.

    J levels reach (taps - 1) (2^J - 1) tokens back.
    """
    return (-(-(length - 1) // (taps - 1))).bit_length()


def dilated_tree(
    x: Float[Tensor, "b l d"],
    low: Float[Tensor, "d k"],
    high: Float[Tensor, "d k"],
    weights: Float[Tensor, "d w"],
    *,
    before: Sequence[Tensor] | None = None,
    document: Int[Tensor, "b l"] | None = None,
) -> tuple[Float[Tensor, "b l d"], tuple[Tensor, ...]]:
    """Return y = sum_i w_i hi_i + w_{J+1} lo_J + w_{J+2} x, and the last inputs of each level.

    Level i gives hi_i = h1 * lo_{i-1} and lo_i = h0 * lo_{i-1}, with lo_0 = x; at least float32.

    Args:
        x: Inputs, which must be 0 at padding.
        low: h0; the tap that reads farthest back comes first.
        high: h1, in the same order.
        weights: w of every channel, J + 2 numbers.
        before: The inputs of each level before the first token, 2^(i-1) (k - 1) of level i;
            None: zeros.
        document: The document of each token: taps read only tokens of the same document.
    """
    low_pass = x.to(sum_dtype(x))
    *level_weights, low_weight, token_weight = weights.to(low_pass.dtype).unbind(1)
    y, after = token_weight * low_pass, []
    for level, weight in enumerate(level_weights):
        earlier = None if before is None else before[level]
        inputs, last = tap_inputs(low_pass, low.shape[1], earlier, document, spacing=1 << level)
        y = y + weight * sum_taps(inputs, high)
        low_pass = sum_taps(inputs, low)
        after.append(last)
    return y + low_weight * low_pass, tuple(after)

"""A tree of short convolutions whose taps move apart: the same two for every scale of time.

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
    """Return the number of levels at which the last of `length` tokens depends on the first."""
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
    """Return y, and the last inputs of each level; at least float32.

    Args:
        x: What is convolved, 0 at padding.
        low: h0, the farthest tap first.
        high: h1, likewise.
        weights: w of every channel, J + 2 numbers.
        before: The last inputs of each level before the first token, 2^(i-1) (k - 1) of level i;
            None: zeros.
        document: Taps do not reach over to another.
    """
    seen = x.to(sum_dtype(x))
    *of_levels, of_rest, of_token = weights.to(seen.dtype).unbind(1)
    y, after = of_token * seen, []
    for level, weight in enumerate(of_levels):
        earlier = None if before is None else before[level]
        inputs, last = tap_inputs(seen, low.shape[1], earlier, document, spacing=1 << level)
        y = y + weight * sum_taps(inputs, high)
        seen = sum_taps(inputs, low)
        after.append(last)
    return y + of_rest * seen, tuple(after)

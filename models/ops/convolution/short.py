"""A short convolution of every channel with its own taps, of a token and those before it.

    y_t = sum_j w_j x_{t - s (k - 1 - j)} + b          k taps, s apart; the last is the token's own

As a sum of k shifted products, which autograd keeps the inputs of and nothing else. The result is
float32, or float64 where `x` is.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.ops.numerics import sum_dtype


def short_convolution(
    x: Float[Tensor, "b l d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None = None,
    before: Float[Tensor, "b m d"] | None = None,
    document: Int[Tensor, "b l"] | None = None,
    *,
    spacing: int = 1,
) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b m d"]]:
    """Convolve; return the outputs, and the s (k - 1) last inputs.

    Args:
        x: What is convolved, 0 at padding.
        weight: Taps of each channel, the farthest first.
        bias: Added to each channel.
        before: The inputs before the first one; None: zeros.
        document: Taps do not reach over to another; those before are of the first one.
        spacing: Tokens from a tap to the next, s.
    """
    dtype, (batch, length, width) = sum_dtype(x), x.shape
    taps = weight.shape[1]
    reach = spacing * (taps - 1)
    if before is None:
        before = x.new_zeros(batch, reach, width)
    whole = torch.cat((before.to(dtype), x.to(dtype)), dim=1)
    if document is not None:
        earlier = document[:, :1].expand(-1, reach)
        document = torch.cat((earlier, document), dim=1)
    y = x.new_zeros(width, dtype=dtype) if bias is None else bias.to(dtype)
    for tap, own in enumerate(weight.to(dtype).unbind(1)):
        there = slice(tap * spacing, tap * spacing + length)
        product = whole[:, there] * own
        if document is not None and tap < taps - 1:
            product = product * (document[:, there] == document[:, reach:])[..., None]
        y = y + product
    after = whole[:, length:]
    if document is not None:
        after = after * (document[:, length:] == document[:, -1:])[..., None]
    # Cloned: a view would hold the whole segment.
    return y, after.to(before.dtype).clone()

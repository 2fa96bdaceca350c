"""A short convolution of every channel with its own taps, of a token and those before it.

    y_t = sum_j w_j x_{t - s (k - 1 - j)} + b          k taps, s apart; the last is the token's own

As a sum of k shifted products, which autograd keeps the inputs of and nothing else. The result is
float32, or float64 where `x` is.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.ops.numerics import sum_dtype


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
    inputs, after = tap_inputs(x, weight.shape[1], before, document, spacing=spacing)
    y = sum_taps(inputs, weight)
    return y if bias is None else y + bias.to(y.dtype), after


def sum_taps(inputs: list[Tensor], weight: Float[Tensor, "d k"]) -> Float[Tensor, "b l d"]:
    """Return the sum of the inputs, each multiplied by its tap of every channel."""
    # Each tap's channels behind each other: strided ones take four times as long.
    taps = weight.to(inputs[0].dtype).mT.contiguous().unbind()
    y = inputs[0] * taps[0]
    for seen, tap in zip(inputs[1:], taps[1:], strict=True):
        y.addcmul_(seen, tap)
    return y


def tap_inputs(
    x: Float[Tensor, "b l d"],
    taps: int,
    before: Float[Tensor, "b m d"] | None = None,
    document: Int[Tensor, "b l"] | None = None,
    *,
    spacing: int = 1,
) -> tuple[list[Tensor], Float[Tensor, "b m d"]]:
    """Return the input of each tap at every token, the farthest first, and the last inputs."""
    dtype, (batch, length, width) = sum_dtype(x), x.shape
    reach = spacing * (taps - 1)
    if before is None:
        before = x.new_zeros(batch, reach, width)
    whole = torch.cat((before.to(dtype), x.to(dtype)), dim=1)
    inputs = [whole[:, tap * spacing : tap * spacing + length] for tap in range(taps)]
    after = whole[:, length:]
    if document is not None:
        document = torch.cat((document[:, :1].expand(-1, reach), document), dim=1)
        current = document[:, reach:]
        for tap in range(taps - 1):
            there = document[:, tap * spacing : tap * spacing + length]
            inputs[tap] = inputs[tap] * (there == current)[..., None]
        after = after * (document[:, length:] == document[:, -1:])[..., None]
    # Cloned: a view would hold the whole segment.
    return inputs, after.to(before.dtype).clone()

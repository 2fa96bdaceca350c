"""A short convolution of every channel with its own taps, of a token and those before it.

    y_t = sum_j w_j x_{t - s (k - 1 - j)} + b          k taps, s apart; the last is the token's own

As a sum of k shifted products, which autograd keeps the inputs of and nothing else. The result is
float32, or float64 where `x` is.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.kernels.door import door
from lra.models.positions import precise


@door
def short_convolution(
    x: Float[Tensor, "b l d"],
    weight: Float[Tensor, "d k"],
    bias: Float[Tensor, " d"] | None = None,
    before: Float[Tensor, "b m d"] | None = None,
    document: Int[Tensor, "b l"] | None = None,
    *,
    spacing: int = 1,
) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b m d"]]:
    """Return y_t = sum_j w_j x_{t - s (k - 1 - j)} + b, and the last m = s (k - 1) inputs.

    Args:
        x: Inputs, which must be 0 at padding.
        weight: k taps of each channel; the last one multiplies the token itself.
        bias: Number added to each channel; None: 0.
        before: The m inputs before the first token; None: zeros.
        document: The document of each token: taps read only tokens of the same document. `before`
            belongs to the first document. None: there is one document.
        spacing: Distance in tokens between neighbouring taps, s.
    """
    inputs, after = tap_inputs(x, weight.shape[1], before, document, spacing=spacing)
    y = sum_taps(inputs, weight)
    return y if bias is None else y + bias.to(y.dtype), after


def sum_taps(inputs: list[Tensor], weight: Float[Tensor, "d k"]) -> Float[Tensor, "b l d"]:
    """Return sum_j weight_j inputs_j, where inputs_j (b, l, d) is the input of tap j."""
    # The channels of a tap are contiguous, because strided channels take four times as long.
    taps = weight.to(inputs[0].dtype).mT.contiguous().unbind()
    y = inputs[0] * taps[0]
    for tap_input, tap in zip(inputs[1:], taps[1:], strict=True):
        y.addcmul_(tap_input, tap)
    return y


def tap_inputs(
    x: Float[Tensor, "b l d"],
    taps: int,
    before: Float[Tensor, "b m d"] | None = None,
    document: Int[Tensor, "b l"] | None = None,
    *,
    spacing: int = 1,
) -> tuple[list[Tensor], Float[Tensor, "b m d"]]:
    """Return the inputs of every tap, each (b, l, d), and the last m inputs after the segment.

    The tap that reads farthest back comes first. Arguments are those of `short_convolution`.
    """
    dtype, (batch, length, width) = precise(x.dtype), x.shape
    reach = spacing * (taps - 1)
    if before is None:
        before = x.new_zeros(batch, reach, width)
    all_inputs = torch.cat((before.to(dtype), x.to(dtype)), dim=1)
    inputs = [all_inputs[:, tap * spacing : tap * spacing + length] for tap in range(taps)]
    after = all_inputs[:, length:]
    if document is not None:
        document = torch.cat((document[:, :1].expand(-1, reach), document), dim=1)
        current = document[:, reach:]
        for tap in range(taps - 1):
            tap_document = document[:, tap * spacing : tap * spacing + length]
            inputs[tap] = inputs[tap] * (tap_document == current)[..., None]
        after = after * (document[:, length:] == document[:, -1:])[..., None]
    # A copy, because a view would keep the whole segment in memory.
    return inputs, after.to(before.dtype).clone()

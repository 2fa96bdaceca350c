"""From rows that a memory gives up to fewer ones: the functions of the Compressive Transformer.

Source: Rae et al. 2020, arXiv:1911.05507, section 3.1.
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F


class Compression(StrEnum):
    """How `rate` rows become one row."""

    mean = auto()
    max = auto()
    """The maximum of each channel."""
    convolution = auto()
    """A convolution of width and stride `rate`."""
    dilated = auto()
    """Two convolutions of that width, the second with dilation 2 and stride `rate`."""
    most_used = auto()
    """The rows that received most attention, in their order."""


LEARNED = (Compression.convolution, Compression.dilated)
"""Those with parameters."""


class Compressor(nn.Module):
    """Reduces rows by `rate`; convolutions are Xavier-uniform, with biases of zero.

    Args:
        width: Of a row.
        rate: Rows that become one.
        kind: How.
    """

    def __init__(self, width: int, rate: int, kind: Compression) -> None:
        super().__init__()
        self.rate, self.kind = rate, kind
        number = {Compression.convolution: 1, Compression.dilated: 2}.get(kind, 0)
        layers = [nn.Linear(rate * width, width) for _ in range(number)]
        for layer in layers:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.layers = nn.ModuleList(layers)

    def forward(
        self,
        rows: Float[Tensor, "b s d"],
        used: Float[Tensor, "b s"] | None = None,
        number: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b g d"]:
        """Return one row for each `rate`, which must divide their number.

        Args:
            rows: What is compressed, in order.
            used: How much each was attended to, for most_used.
            number: How many rows are wanted of each example, the first ones, for most_used; None:
                all.
        """
        batch, length, width = rows.shape
        groups = rows.reshape(batch, length // self.rate, self.rate, width)
        match self.kind:
            case Compression.mean:
                return groups.mean(2)
            case Compression.max:
                return groups.amax(2)
            case Compression.convolution:
                convolved: Tensor = self.layers[0](groups.flatten(2))
                return convolved
            case Compression.dilated:
                inner = self._convolved(rows, 0, dilation=1, stride=1)
                return self._convolved(inner, 1, dilation=2, stride=self.rate)
            case Compression.most_used:
                counts = rows[..., 0] * 0 if used is None else used
                return most_used(rows, counts, self.rate, number)

    def _convolved(
        self, rows: Float[Tensor, "b s d"], layer: int, *, dilation: int, stride: int
    ) -> Float[Tensor, "b t d"]:
        """Convolve over the length, padded with zeros on both sides as `stride` needs."""
        missing = dilation * (self.rate - 1) + 1 - stride
        left = max(missing, 0) // 2
        padded = F.pad(rows, (0, 0, left, max(missing, 0) - left))
        linear = cast(nn.Linear, self.layers[layer])
        kernel = linear.weight.view(len(linear.weight), self.rate, -1).transpose(1, 2)
        return F.conv1d(padded.mT, kernel, linear.bias, stride=stride, dilation=dilation).mT


def most_used(
    rows: Float[Tensor, "b s d"],
    used: Float[Tensor, "b s"],
    rate: int,
    number: Int[Tensor, " b"] | None = None,
) -> Float[Tensor, "b g d"]:
    """Return the s / rate rows of the largest numbers, in their order; of equals the first.

    With `number`, so many of each example, and anything behind them.
    """
    size = rows.shape[1]
    order = used.sort(dim=1, descending=True, stable=True).indices[:, : size // rate]
    if number is not None:
        behind = torch.arange(size // rate, device=rows.device) >= number[:, None]
        order = order.masked_fill(behind, size - 1)
    order = order.sort(dim=1).values
    return rows.gather(1, order[..., None].expand(-1, -1, rows.shape[2]))


def masked_error(
    wanted: Float[Tensor, "b *x"], predicted: Float[Tensor, "b *x"], rows: Bool[Tensor, " b"]
) -> Float[Tensor, ""]:
    """Return the mean squared error over the rows in `rows`; 0 if there are none."""
    each = (wanted - predicted).square().flatten(1).mean(1)
    return torch.where(rows, each, 0.0).sum() / rows.sum().clamp(min=1)

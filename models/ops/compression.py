"""Functions of the Compressive Transformer that compress the oldest rows of a memory.

Source: Rae et al. 2020, arXiv:1911.05507, section 3.1.
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import LinearMap


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
"""The compressions that have parameters."""


class Compressor(nn.Module):
    """Compress each `rate` rows to one; convolutions start Xavier-uniform, with biases of 0.

    Args:
        width: Number of channels of a row.
        rate: Number of rows that become one row.
        kind: How rows are compressed.
    """

    def __init__(self, width: int, rate: int, kind: Compression) -> None:
        super().__init__()
        self.rate, self.kind = rate, kind
        number = {Compression.convolution: 1, Compression.dilated: 2}.get(kind, 0)
        layers = [LinearMap(rate * width, width) for _ in range(number)]
        self.layers = nn.ModuleList(layers)
        for layer in layers:
            layer.draw()

    def forward(
        self,
        rows: Float[Tensor, "b s d"],
        used: Float[Tensor, "b s"] | None = None,
        number: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b g d"]:
        """Return g = s / rate compressed rows; `rate` must divide s.

        Args:
            rows: The rows to compress, in order.
            used: How much attention each row received, for most_used; None: all received 0.
            number: How many rows most_used must select in each example; later rows of the result
                are arbitrary. None: all g rows.
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
                inner = self._convolve_rows(rows, 0, dilation=1, stride=1)
                return self._convolve_rows(inner, 1, dilation=2, stride=self.rate)
            case Compression.most_used:
                counts = rows[..., 0] * 0 if used is None else used  # 0 for every row
                return most_used(rows, counts, self.rate, number)

    def _convolve_rows(
        self, rows: Float[Tensor, "b s d"], layer: int, *, dilation: int, stride: int
    ) -> Float[Tensor, "b t d"]:
        """Convolve `rows` along s with the kernel of size `rate` in `self.layers[layer]`.

        Zeros are padded on both sides, so that t = s / stride.
        """
        padding = dilation * (self.rate - 1) + 1 - stride
        left_padding = max(padding, 0) // 2
        padded = F.pad(rows, (0, 0, left_padding, max(padding, 0) - left_padding))
        linear = cast(nn.Linear, self.layers[layer])
        kernel = linear.weight.view(len(linear.weight), self.rate, -1).transpose(1, 2)
        return F.conv1d(padded.mT, kernel, linear.bias, stride=stride, dilation=dilation).mT


def most_used(
    rows: Float[Tensor, "b s d"],
    used: Float[Tensor, "b s"],
    rate: int,
    number: Int[Tensor, " b"] | None = None,
) -> Float[Tensor, "b g d"]:
    """Return the g = s / rate rows with the largest `used`, in their original order.

    Among rows with equal numbers, the first ones are selected. If `number` is given, only so many
    rows of each example are selected, and the rows after them are arbitrary.
    """
    size = rows.shape[1]
    selected = used.sort(dim=1, descending=True, stable=True).indices[:, : size // rate]
    if number is not None:
        not_selected = torch.arange(size // rate, device=rows.device) >= number[:, None]
        selected = selected.masked_fill(not_selected, size - 1)
    selected = selected.sort(dim=1).values
    return rows.gather(1, selected[..., None].expand(-1, -1, rows.shape[2]))


def masked_error(
    wanted: Float[Tensor, "b *x"], predicted: Float[Tensor, "b *x"], rows: Bool[Tensor, " b"]
) -> Float[Tensor, ""]:
    """Return the mean squared error over the examples with True in `rows`; 0 if there are none."""
    errors = (wanted - predicted).square().flatten(1).mean(1)
    return torch.where(rows, errors, 0.0).sum() / rows.sum().clamp(min=1)

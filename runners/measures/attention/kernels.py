"""The kernels that convolutions use: learned kernels, or the mean of kernels predicted from tokens.

Kernels are read after the softmax over their taps (Wu et al. 2019, arXiv:1901.10430; Wu et al.
2020, arXiv:2004.11886; Jiang et al. 2020, arXiv:2008.02496). For predicted kernels, mean and
standard deviation over real tokens are reported.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lra.runners.measures.attention.reading import KeptTokens
from lra.runners.records import Measurement


class Kernels:
    """Mean and deviation of the convolution kernels that were added, by layer."""

    def __init__(self) -> None:
        self.lefts: dict[int, int] = {}  # taps before that of the current token
        self.moments: dict[int, Tensor] = {}
        """Sums of the kernels and of their squares, [2, h, t]; of a learned kernel, [1, h, t]."""
        self.tokens: dict[int, float] = {}
        """How many tokens were added; 0 for a learned kernel, which is the same for all tokens."""

    def add(self, layer: int, left: int, taps: Tensor, rows: KeptTokens) -> None:
        """Add the kernels of a layer for one batch: [h, t] if learned, [b, h, l, t] if predicted.

        `left` is the number of taps before the tap of the current token. Padding does not count.
        """
        self.lefts[layer], taps = left, taps.double()
        if taps.ndim == 2:
            self.moments[layer], self.tokens[layer] = taps[None].cpu(), 0
            return
        real = rows.real.double()
        moments = torch.stack(
            [torch.einsum("bhlt,bl->ht", power, real) for power in (taps, taps.square())]
        ).cpu()
        self.moments[layer] = self.moments.get(layer, 0) + moments
        self.tokens[layer] = self.tokens.get(layer, 0) + float(real.sum())

    def measurements(self) -> Iterator[Measurement]:
        """Yield the mean kernel of each head, and its standard deviation over tokens if it has one.

        The value of a row is that of the current token; its samples are all taps, oldest first.
        """
        for layer, moments in sorted(self.moments.items()):
            left, tokens = self.lefts[layer], self.tokens[layer]
            mean, *squares = moments / (tokens or 1)  # a learned kernel has no squares
            parts = {"kernel_weight": mean}
            if squares:
                parts["kernel_deviation"] = (squares[0] - mean.square()).clamp(min=0).sqrt()
            for metric, kernels in parts.items():
                for head, taps in enumerate(kernels.clamp(0, 1).tolist()):
                    yield Measurement(
                        metric=metric,
                        value=taps[left],
                        samples=tuple(round(weight, 6) for weight in taps),
                        labels={"layer": str(layer), "head": str(head), "left": str(left)},
                    )

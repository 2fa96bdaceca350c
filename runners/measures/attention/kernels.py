"""The kernels that convolutions use: learned ones, or means of those that tokens predict.

Kernels are those behind the softmax over taps (Wu et al. 2019, arXiv:1901.10430; Wu et al. 2020,
arXiv:2004.11886; Jiang et al. 2020, arXiv:2008.02496). Predicted ones are averaged over real
tokens, and so is how far they lie from that mean.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from lra.runners.measures.attention.reading import KeptTokens
from lra.runners.records import Measurement


class Kernels:
    """Sums over the kernels that were added."""

    def __init__(self) -> None:
        self.lefts: dict[int, int] = {}
        self.moments: dict[int, Tensor] = {}
        """Sums of the kernels and of their squares, [2 h t]."""
        self.tokens: dict[int, float] = {}
        """0: one kernel for all tokens."""

    def add(self, layer: int, left: int, taps: Tensor, rows: KeptTokens) -> None:
        """Take the kernels of one layer, [h t] or [b h l t]."""
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
        """Yield the kernel of each head, the oldest token first, and its deviation over tokens."""
        for layer, moments in sorted(self.moments.items()):
            left, tokens = self.lefts[layer], self.tokens[layer]
            mean, *squares = moments / (tokens or 1)
            parts = {"kernel_weight": mean}
            if squares:
                parts["kernel_deviation"] = (squares[0] - mean.square()).clamp(min=0).sqrt()
            for metric, every in parts.items():
                for head, taps in enumerate(every.clamp(0, 1).tolist()):
                    yield Measurement(
                        metric=metric,
                        value=taps[left],
                        samples=tuple(round(weight, 6) for weight in taps),
                        labels={"layer": str(layer), "head": str(head), "left": str(left)},
                    )

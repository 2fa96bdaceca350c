"""Mixers that claim to know ranks with parts of each sequence, and know less."""

import torch
from torch import Tensor

from models.families.light_conv import LightConv
from models.families.linear import LinearAttention
from models.families.softmax import SoftmaxAttention
from models.mixer import Layout


class IgnoresOtherRanks(SoftmaxAttention):
    """Attends to its own part."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout._replace(context=None))


class CountsFromItsOwnPart(SoftmaxAttention):
    """Positions begin anew with each part."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.context is not None:
            layout = layout._replace(start=torch.zeros(len(x), dtype=torch.int64))
        return super().forward(x, layout)


class KeepsItsGradients(LightConv):
    """Reads the neighbours' tokens, and tells them nothing of their gradients."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        context = layout.context
        if context is None:
            return super().forward(x, layout)
        reach = self.taps - 1
        wide, (before, behind) = context.halo(x.detach(), reach, reach, 1)
        parts = wide[:, :before], x, wide[:, wide.shape[1] - behind :]
        keep = context.kept_around(layout.keep, reach, reach)
        y = super().forward(torch.cat(parts, 1), Layout(keep=keep))
        return y[:, before : before + x.shape[1]]


class PassesNoMask(LinearAttention):
    """Leaves out padding where it is alone, and counts it for others."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout if layout.context is None else layout._replace(keep=None))


class StopsHalfway(SoftmaxAttention):
    """Hands keys on once on the first rank, which the others wait for."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.context is not None and layout.context.rank == 0:
            raise RuntimeError("the first rank stops")
        return super().forward(x, layout)

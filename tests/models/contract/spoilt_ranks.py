"""Mixers that claim to know ranks with parts of each sequence, and know less."""

import torch
from torch import Tensor

from lra.models.families.light_conv import LightConv
from lra.models.families.linear import LinearAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout


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


class _Misled(SoftmaxAttention):
    """Among ranks, attends under another layout."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout if layout.context is None else self.altered(x, layout))

    def altered(self, x: Tensor, layout: Layout) -> Layout:
        raise NotImplementedError


class DropsDocumentsOnRanks(_Misled):
    def altered(self, x: Tensor, layout: Layout) -> Layout:
        return layout._replace(document=None)


class DropsOrderOnRanks(_Misled):
    def altered(self, x: Tensor, layout: Layout) -> Layout:
        return layout._replace(order=None)


class PrefixOfItsOwnPart(_Misled):
    """Counts the tokens of a prefix from where its part begins."""

    def altered(self, x: Tensor, layout: Layout) -> Layout:
        if layout.prefix is None:
            return layout
        return layout._replace(prefix=layout.prefix + layout.context.offset)


class IgnoresOtherRanksInTraining(_Misled):
    def altered(self, x: Tensor, layout: Layout) -> Layout:
        return layout._replace(context=None) if self.training else layout


class IgnoresOtherRanksInFloat32(_Misled):
    def altered(self, x: Tensor, layout: Layout) -> Layout:
        return layout._replace(context=None) if x.dtype == torch.float32 else layout


class IgnoresOtherRanksWithoutGradient(_Misled):
    def altered(self, x: Tensor, layout: Layout) -> Layout:
        return layout if torch.is_grad_enabled() else layout._replace(context=None)


class OneMaskOnRanks(_Misled):
    """Sends the documents along, or the padding, and not both."""

    def altered(self, x: Tensor, layout: Layout) -> Layout:
        return layout if layout.keep is None else layout._replace(document=None)


class ExtendIgnoresOtherRanks(SoftmaxAttention):
    def extend(self, flow: Flow, layout: Layout) -> Flow:
        return super().extend(flow, layout._replace(context=None))


class ReachesOneRank(LightConv):
    """Reads what the next ranks hold, and of no rank behind those."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        context = layout.context
        if context is None:
            return super().forward(x, layout)
        reach = self.taps - 1
        left, right = (
            min(reach, context.lengths[rank]) if 0 <= rank < context.ranks else 0
            for rank in (context.rank - 1, context.rank + 1)
        )
        # The widest of all, lest ranks ask each other for different numbers.
        wide, (before, behind) = context.halo(x, reach, reach, 1)
        keep = context.kept_around(layout.keep, reach, reach)
        own = slice(before - left, wide.shape[1] - behind + right)
        keep = None if keep is None else keep[:, own]
        y = super().forward(wide[:, own], Layout(keep=keep))
        return y[:, left : left + x.shape[1]]


class MissesALonePart(LinearAttention):
    """Takes a part without a real token for no part at all."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        if layout.context is None or layout.keep is None:
            return y
        least = layout.context.largest(-layout.keep.sum().to(x)[None])
        return 2 * y if least == 0 else y

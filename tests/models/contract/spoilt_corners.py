"""Mixers with faults that were thought of after the checks were written, where they meet."""

import torch
from torch import Tensor

from lra.models.mixer import Flow, Layout, Site
from lra.models.multi_head import MultiHead
from tests.models.contract.spoilt_layouts import CrossCore, Reader, WideReader
from tests.models.contract.spoilt_mixers import Honest, KernelCore, Plain
from tests.models.contract.spoilt_numbers import _Scaled


class GradientsUnderDocuments(Honest):
    """Gives gradients of queries times 1.01 where there are documents."""

    core_class = WideReader

    def project(self, x: Tensor, layout: Layout):
        q, k, v = super().project(x, layout)
        return (q if layout.document is None else _Scaled.apply(q, 1.01)), k, v


class CrossTrainsOnPadding(Honest):
    """Attends to padding of the source in training."""

    def __init__(self, site: Site) -> None:
        MultiHead.__init__(self, site, CrossCore(site, cross=True))

    def attend(self, x: Tensor, layout: Layout, source: Tensor, source_layout: Layout) -> Tensor:
        return super().attend(x, layout, source, Layout() if self.training else source_layout)


class StaysInAStream(Honest):
    """Takes the path of streams for good once it has seen a state."""

    streaming = False

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        self.streaming = self.streaming or flow.state is not None
        return super().extend(flow, layout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * (1 + 1e-6 * self.streaming)


class _HalfBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        half = gradient.dtype == torch.float32
        return gradient.bfloat16().to(gradient.dtype) if half else gradient


class RoundsGradientsInFloat32(Honest):
    """Hands gradients back in half precision, whatever they came in."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(_HalfBackward.apply(x), layout)


class DocumentsOfShortSequences(Honest):
    """Has room for the documents of 128 tokens."""

    core_class = WideReader

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout._replace(document=None) if x.shape[1] > 128 else layout)


class LongTrainingSeesPadding(Honest):
    """Forgets padding of long sequences in training."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, Layout() if self.training and x.shape[1] > 128 else layout)


class ExtendNeedsRows(Plain):
    """Shifts by the largest value of the batch, and back, where a stack calls it."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        largest = flow.x.amax().detach()
        return flow._replace(x=self.forward(flow.x - largest + largest, layout))


class TrainsToNaN(KernelCore):
    """Divides by the number of real tokens in training."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        o = super().forward(q, k, v, layout)
        if layout.keep is None or not self.training:
            return o
        count = layout.keep.sum(1).to(o)[:, None, None, None]
        return o * count / count


class SeesAllWhereEachIsAlone(WideReader):
    """Takes documents of one token each for none."""

    def document(self, layout: Layout) -> Tensor:
        same = super().document(layout)
        alone = same.sum((1, 2), keepdim=True) == layout.document.shape[1]
        return same | alone


class AddsAGlobalInTraining(Reader):
    """Opens what is global to all rows in training, beside padding."""

    def widened(self, layout: Layout) -> Tensor:
        wide = super().widened(layout)
        return wide.any(0, keepdim=True) if self.training and layout.keep is not None else wide


class StreamsMixRowsInTraining(KernelCore):
    """Reads the state of the first row for all in training."""

    def extend(self, q, k, v, layout: Layout, state):
        if self.training:
            state = tuple(part[:1].expand_as(part) for part in state)
        return super().extend(q, k, v, layout, state)


class LosesTheEighties(KernelCore):
    """Leaves the last key of blocks of 80 to the next block, which may not come."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if q.shape[2] % 80 or self.traits.causal:
            return super().forward(q, k, v, layout)
        keep = torch.ones(len(q), q.shape[2], dtype=torch.bool)
        keep = keep if layout.keep is None else layout.keep.clone()
        keep[:, -1] = False
        return super().forward(q, k, v, layout._replace(keep=keep))

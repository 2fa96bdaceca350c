"""Mixers of which one way to call them is another function than the rest."""

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.mixer import Flow, Layout, State
from tests.models.contract.spoilt_layouts import WideReader
from tests.models.contract.spoilt_mixers import Honest, KernelCore
from tests.models.contract.spoilt_passes import Dropping


class _Apart(Honest):
    """Without a state, `extend` is a pass under another layout than `forward`."""

    core_class = WideReader

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is None:
            return flow._replace(x=self.forward(flow.x, self.altered(layout)))
        return super().extend(flow, layout)

    def altered(self, layout: Layout) -> Layout:
        raise NotImplementedError


class ExtendForgetsPadding(_Apart):
    def altered(self, layout: Layout) -> Layout:
        return layout._replace(keep=None)


class ExtendForgetsDocument(_Apart):
    def altered(self, layout: Layout) -> Layout:
        return layout._replace(document=None)


class ExtendForgetsPrefix(_Apart):
    def altered(self, layout: Layout) -> Layout:
        return layout._replace(prefix=None)


class ExtendForgetsOrder(_Apart):
    def altered(self, layout: Layout) -> Layout:
        return layout._replace(order=None)


class ExtendTrainsOnPadding(_Apart):
    """What a stack calls in training, and no check of `forward` does."""

    def altered(self, layout: Layout) -> Layout:
        return layout._replace(keep=None) if self.training else layout


class ExtendWithoutGradientForgets(_Apart):
    def altered(self, layout: Layout) -> Layout:
        return layout if torch.is_grad_enabled() else Layout()


class TrainsWithoutOrder(Honest):
    core_class = WideReader

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout._replace(order=None) if self.training else layout)


class TrainsWithoutTwoMasks(Honest):
    """Takes the first mask of several in training."""

    core_class = WideReader

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.training and layout.keep is not None:
            layout = layout._replace(document=None)
        return super().forward(x, layout)


class ExtendDetaches(Honest):
    """Gives no gradient to the keys of a pass by `extend`."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is not None:
            return super().extend(flow, layout)
        q, k, v = self.project(flow.x, layout)
        return flow._replace(x=self.merge(self.core(q, k.detach(), v, layout)))


class StreamsUnreadInTraining(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        if self.training:
            state = tuple(torch.zeros_like(part) for part in state)
        return super().extend(q, k, v, layout, state)


class StreamsUnreadUnderAutocast(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        if torch.is_autocast_enabled("cpu"):
            state = tuple(torch.zeros_like(part) for part in state)
        return super().extend(q, k, v, layout, state)


class StreamsAheadInBfloat16(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        if q.dtype == torch.bfloat16:
            return super().extend(q, k.flip(2), v.flip(2), layout, state)
        return super().extend(q, k, v, layout, state)


class KeepsHalfAState(KernelCore):
    """Rounds sums to half precision in float32, and in that alone."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, after = super().extend(q, k, v, layout, state)
        if q.dtype == torch.float32:
            after = tuple(part.bfloat16().to(part.dtype) for part in after)
        return o, after


class DropsBehindAState(Dropping):
    """Drops outputs of a stream in evaluation as well."""

    initial_state = KernelCore.initial_state

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, after = super().extend(q, k, v, layout, state)
        return F.dropout(o, self.rate), after


class ExtendDropsNothing(Honest):
    """What a stack calls knows no dropout."""

    core_class = Dropping

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is not None:
            return super().extend(flow, layout)
        q, k, v = self.project(flow.x, layout)
        return flow._replace(x=self.merge(KernelCore.forward(self.core, q, k, v, layout)))


class ExtendDropsWithoutMask(Honest):
    """Forgets the mask on the path of dropout, by `extend` alone."""

    core_class = Dropping

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is None and self.training and self.core.rate > 0:
            layout = Layout()
        return super().extend(flow, layout)


class _Penalised(Honest):
    """Costs the mean square of its tokens."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        return super().extend(flow, layout).add_penalty("size", self.cost(flow))

    def cost(self, flow: Flow) -> Tensor:
        return flow.x.square().mean()


class DoublesLaterPenalties(_Penalised):
    def cost(self, flow: Flow) -> Tensor:
        later = flow.state is not None and bool(flow.state[0].any())
        return super().cost(flow) * (2 if later else 1)


class KeepsItsPenalties(_Penalised):
    """Adds what it charged before."""

    total = 0.0

    def cost(self, flow: Flow) -> Tensor:
        self.total = self.total + super().cost(flow).detach()
        return super().cost(flow) + self.total


class DoublesOthersPenalties(_Penalised):
    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is not None:
            flow = flow._replace(penalties={k: 2 * v for k, v in flow.penalties.items()})
        return super().extend(flow, layout)

"""Mixers whose state remembers too much or too little, or hands back wrong gradients."""

from dataclasses import replace

import torch
from torch import Tensor

from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Site, State
from tests.models.contract.spoilt_mixers import Honest, KernelCore


class RemembersTwice(SoftmaxAttention):
    """Makes room for twice as many tokens as are asked for."""

    def initial_state(self, batch_size: int, memory: int) -> State:
        return super().initial_state(batch_size, 2 * memory)


class RemembersAll(SoftmaxAttention):
    """Makes room for the longest input, whatever is asked for."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.longest = site.max_length

    def initial_state(self, batch_size: int, memory: int) -> State:
        return super().initial_state(batch_size, self.longest)


class ForgetsTheOldest(SoftmaxAttention):
    """Makes room for one token less than is asked for."""

    def initial_state(self, batch_size: int, memory: int) -> State:
        return super().initial_state(batch_size, max(1, memory - 1))


class RemembersInTraining(SoftmaxAttention):
    def initial_state(self, batch_size: int, memory: int) -> State:
        return super().initial_state(batch_size, memory * (2 if self.training else 1))


class SummarisesNothing(SoftmaxAttention):
    """Says that what came before its memory stays in sight."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, summarises=True)


class KeepsAView(KernelCore):
    """Hands on a part of a larger tensor, so that all of it stays in memory."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, (sums, norm) = super().extend(q, k, v, layout, state)
        return o, (torch.stack((sums,) * 4)[1], norm)


class DetachesInTraining(KernelCore):
    """Cuts the history where it matters, and not where most checks look."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        if self.training:
            state = tuple(part.detach() for part in state)
        return super().extend(q, k, v, layout, state)


class DetachesFromTheThird(KernelCore):
    """Cuts the history of what a state made of a state tells."""

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        return *super().initial_state(shape, like), like.new_zeros(shape[0])

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        *sums, seen = state
        if seen.max() > 1:
            sums = [part.detach() for part in sums]
        o, after = super().extend(q, k, v, layout, tuple(sums))
        return o, (*after, seen + 1)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient


class DoublesLaterGradients(KernelCore):
    """Gives back twice the gradient of what a segment behind a state reads."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        later = bool(state[0].any())
        return super().extend(q, k, _Doubled.apply(v) if later else v, layout, state)


class StaysShort(Honest):
    """Takes the path for short sequences for good once it has seen one."""

    short = False

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        self.short = self.short or x.shape[1] < 8
        y = super().forward(x, layout)
        return y * (1 + 1e-6) if self.short else y


class StaysShortByExtend(Honest):
    short = False

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        self.short = self.short or flow.x.shape[1] < 8
        return super().extend(flow, layout)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * (1 + 1e-6 * self.short)


class KeepsRoundedWeights(Honest):
    """Keeps a product that it made under autocast."""

    kept: Tensor | None = None

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            self.kept = self.v_proj.weight.detach().bfloat16().to(x.dtype)
        y = super().forward(x, layout)
        return y if self.kept is None else y + 1e-3 * (x @ self.kept.to(x.dtype).T)

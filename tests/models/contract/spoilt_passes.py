"""Mixers whose pass has an effect, or a past, that it must not have."""

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Layout, Site, State, Unsupported
from tests.models.contract.spoilt_mixers import Honest, KernelCore


class TrainsOnBatchMean(Honest):
    """Batch statistics in training, none in evaluation."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x - x.mean((0, 1)) if self.training else x, layout)


class TrainsAhead(KernelCore):
    """Causal in evaluation only."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return q.new_ones(q.shape[2], q.shape[2]).tril(int(self.training))


class TrainsOnPadding(KernelCore):
    """Knows padding in evaluation only."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return super().forward(q, k, v, Layout() if self.training else layout)


class TrainsByLength(Honest):
    """Scales by the length in training."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * (1 + self.training / x.shape[1])


class Dropping(KernelCore):
    """Drops weights in training, and is honest about it."""

    def __init__(self, site: Site, **traits: object) -> None:
        super().__init__(site, **{"weight_dropout": True, "row_stochastic": False, **traits})
        self.rate = site.attention_dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        weight = self.features(q) @ self.features(k).mT * self.seen(q, layout)
        if layout.keep is not None:
            weight = weight * layout.keep[:, None, None]
        total = weight.sum(-1, keepdim=True)
        return F.dropout(weight / total.where(total > 0, 1), self.rate, self.training) @ v

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        raise Unsupported("sums of weights cannot be dropped one by one")


class DropsOtherWeightsBackward(Dropping):
    """Draws anew, in its backward pass, which weights it dropped."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        y, twin = (super(DropsOtherWeightsBackward, self).forward(q, k, v, layout) for _ in "12")
        return y.detach() + twin - twin.detach()


class DropsAlways(Dropping):
    """Drops weights in evaluation as well."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return F.dropout(super().forward(q, k, v, layout), self.rate)


class DropsUndeclared(Dropping):
    """Drops weights and does not say so."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, weight_dropout=False)


class DropsWithoutMask(Dropping):
    """Has a path with dropout that forgets the mask."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        dropping = self.training and self.rate > 0
        return super().forward(q, k, v, Layout() if dropping else layout)


class DropsAhead(Dropping):
    """Has a path with dropout that is not causal."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        ones = q.new_ones(q.shape[2], q.shape[2])
        return ones if self.training and self.rate > 0 else ones.tril()


class NoisyByNumpy(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * (1 + 1e-9 * np.random.rand())


class NoisyByPython(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * (1 + 1e-9 * random.random())


class RemembersItsInput(Honest):
    """Adds a trace of the batch before."""

    before = 0.0

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout) + 1e-6 * self.before
        self.before = x.detach().abs().mean().item()
        return y


class KeepsItsFirstMask(KernelCore):
    """Makes its mask once for each length, and takes padding for a part of it."""

    masks: dict[int, Tensor]

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        self.masks = getattr(self, "masks", {})
        mask = self.masks.setdefault(q.shape[2], self.seen(q, layout))
        if layout.keep is not None:
            mask *= layout.keep[0]
        weight = self.features(q) @ self.features(k).mT * mask
        return weight @ v / weight.sum(-1, keepdim=True).clamp(min=1e-300)


class ReusesItsOutput(Honest):
    """Writes every output of one shape to the same place."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        if self.training:
            return y
        buffer = getattr(self, "buffer", None)
        if buffer is None or buffer.shape != y.shape:
            self.buffer = torch.empty_like(y)
        return self.buffer.detach_().copy_(y)


class OtherWithoutGradient(Honest):
    """Takes a path of less precision where no gradient is asked for."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        return y if torch.is_grad_enabled() else y.bfloat16().to(y.dtype)


class KeepsAnInferenceTensor(KernelCore):
    """Caches what was made in inference mode, which no later backward pass may read."""

    cached: Tensor | None = None

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        if torch.is_inference_mode_enabled() or self.cached is None:
            self.cached = super().seen(q, layout)
        fits = self.cached.shape[0] == q.shape[2]
        return self.cached if fits else super().seen(q, layout)


class WritesToInput(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        with torch.no_grad():
            x.mul_(0.5)
        return super().forward(x, layout)


class WritesToInputUnderAMask(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.keep is not None:
            with torch.no_grad():
                x.masked_fill_(~layout.keep[..., None], 0.0)
        return super().forward(x, layout)


class WritesToMask(Honest):
    """Makes the first token real, lest a row be empty."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.keep is not None:
            layout.keep[:, 0] = True
        return super().forward(x, layout)


class CountsCalls(Honest):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        self.calls += 1
        return super().forward(x, layout)


class NormalisesItsWeights(Honest):
    """Changes a parameter in training."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.training:
            weight = self.v_proj.weight.data
            weight /= weight.norm()
        return super().forward(x, layout)


class DrawsForNothing(Honest):
    """Takes from the global random state what it does not use."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        torch.rand(())
        return super().forward(x, layout)


class HiddenWeights(Honest):
    """Draws a tensor that no state_dict holds."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.hidden = torch.rand(site.width, device="cpu")

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x * (1 + self.hidden.to(x)), layout)


class ClosureOverWeights(Honest):
    """Holds a parameter in a function, which a deep copy shares with its original."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        bias = nn.Parameter(torch.ones(site.width))
        self.bias, self.shift = bias, lambda x: x + bias.to(x)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.shift(super().forward(x, layout)) + 0 * self.bias


class TakesContiguous(Honest):
    """Reads the memory of the input in the order in which most inputs have it."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x.as_strided(x.shape, torch.empty(x.shape).stride()), layout)


class _Contiguous(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        wanted = torch.empty(gradient.shape).stride()
        dense = gradient.untyped_storage().nbytes() >= gradient.numel() * gradient.element_size()
        return gradient.as_strided(gradient.shape, wanted) if dense else gradient * 0


class TakesContiguousGradients(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return _Contiguous.apply(super().forward(x, layout))


class RedrawsGlobally(Honest):
    """Redraws from the global random state, which differs between ranks."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.register_buffer("drawn", torch.zeros(3))

    def after_step(self, step: int, generator: torch.Generator) -> None:
        self.drawn.copy_(torch.rand(3))


class ConstantPenalty(Honest):
    """Costs something that no parameter can lower."""

    def penalties(self) -> dict[str, Tensor]:
        return {"weights": torch.ones(())}


class TunesNobody(Honest):
    def tuning(self) -> dict[str, object]:
        return {"q_proj.wieght": None}


class SingleTable(Honest):
    """Adds a table in float32 that `to` does not reach: bfloat16 comes out as float32."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.table = torch.linspace(0, 1, site.width, device="cpu")

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) + self.table


class DrawsAndSaysNothing(Honest):
    """A drawn buffer decides the function, which the traits do not tell."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        drawn = torch.rand(site.width, generator=site.generator, device="cpu")
        self.register_buffer("drawn", drawn.to(torch.empty(())))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x * self.drawn, layout)

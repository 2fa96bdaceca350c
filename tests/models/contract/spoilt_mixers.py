"""An honest mixer, and mixers that were spoilt on purpose, for the tests of the contract kit."""

import itertools
from dataclasses import replace

import torch
from torch import Tensor, nn

from lra.models.mixer import Flow, Growth, Layout, Site, State, Traits, Unsupported
from lra.models.multi_head import MultiHead


class KernelCore(nn.Module):
    """Attention by positive features elu(x) + 1, written out; a state when causal."""

    has_window = False

    def __init__(self, site: Site, **traits: object) -> None:
        super().__init__()
        told = {"operations": Growth(2.0), "memory": Growth(2.0), "row_stochastic": True}
        told["sees_order"] = site.causal or self.has_window
        self.traits = Traits(causal=site.causal, **{**told, **traits})  # type: ignore[arg-type]

    def features(self, x: Tensor) -> Tensor:
        return x.clamp(max=0).exp() + x.relu()

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        ones = q.new_ones(q.shape[2], q.shape[2])
        return ones.tril() if self.traits.causal else ones

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        weight = self.features(q) @ self.features(k).mT
        weight *= self.seen(q, layout)
        if layout.keep is not None:
            weight *= layout.keep[:, None, None]
        total = weight.sum(-1, keepdim=True)
        return weight @ v / total.where(total > 0, 1)

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        b, h, _, k, v = shape
        if not self.traits.causal:
            raise Unsupported("looks both ways")
        return like.new_zeros(b, h, k, v), like.new_zeros(b, h, k)

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        (sums, norm), q, k = state, self.features(q), self.features(k)
        local = (q @ k.mT).tril()
        top = q @ sums + local @ v
        o = top / ((q @ norm[..., None]) + local.sum(-1, keepdim=True))
        return o, (sums + k.mT @ v, norm + k.sum(2))


class Honest(MultiHead):
    core_class: type[KernelCore] = KernelCore

    def __init__(self, site: Site) -> None:
        super().__init__(site, self.core_class(site))


def with_core(core: type[KernelCore]) -> type[Honest]:
    return type(core.__name__, (Honest,), {"core_class": core})


class Peeking(KernelCore):
    """Each token sees one step ahead."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return q.new_ones(q.shape[2], q.shape[2]).tril(1)


class SaysItSeesOrder(KernelCore):
    """A set, which does not know."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, sees_order=True)


class NumbersItsKeys(KernelCore):
    """Says that tokens are a set, and weighs the later ones a little more."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return super().seen(q, layout) * (1 + 1e-6 * torch.arange(q.shape[2]).to(q))


class GlobalMaximum(KernelCore):
    """Keys are shifted by their largest value in the whole sequence: cancels but for the 1e-6."""

    def features(self, x: Tensor) -> Tensor:
        return (x - x.amax(2, keepdim=True).detach()).exp() + 1e-6


class FutureScale(nn.Module):
    """Causal sums, scaled by a statistic of the whole sequence."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)
        self.traits = Traits(causal=site.causal, supports=frozenset({"start"}))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x).cumsum(1) / (1 + 1e-6 * x.square().mean((1, 2), keepdim=True))


class BatchMaximum(KernelCore):
    """The largest value of the whole batch decides how much a constant counts."""

    def features(self, x: Tensor) -> Tensor:
        return (x - x.amax()).exp() + 1e-4


class BatchNorm(nn.Module):
    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)
        self.traits = Traits()

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x - x.mean((0, 1)))


class IgnoresPadding(KernelCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return super().forward(q, k, v, Layout())


class SeesPadding(Honest):
    """Takes no mask at all, so that padding does not even stand as zeros."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, Layout())


class ZeroedPadding(KernelCore):
    """Values are zeroed, but padding still counts in the norm."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if layout.keep is not None:
            v, k = (t * layout.keep[:, None, :, None] for t in (v, k))
        return super().forward(q, k, v, Layout())


class MaskedToNaN(KernelCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        scores = q @ k.mT
        if layout.keep is not None:
            scores = scores.masked_fill(~layout.keep[:, None, None], -torch.inf)
        return scores.softmax(-1) @ v


class Unused(Honest):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.forgotten = nn.Parameter(torch.ones(2))


class LearnsAnyway(Honest):
    """Says of a parameter that it learns in streams alone."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, in_streams=frozenset({"q_proj.weight"}))


class UnusedInStreams(Unused):
    """Says the same of one that nothing reads."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, in_streams=frozenset({"forgotten"}))


class Detached(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.project(x, layout)
        return self.merge(self.core(q.detach(), k, v, layout))


class InfiniteSlope(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) + (self.out_proj.bias * 0).abs().sqrt()


class Noisy(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) + 1e-12 * torch.randn_like(x)


class OwnClock(Honest):
    """Draws its parameters from a source that the seed does not reach."""

    ticks = itertools.count()

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        nn.init.constant_(self.q_proj.weight, 1 / (100 + next(self.ticks)))


class OwnGenerator(Honest):
    """Drops weights in training, from a generator that recomputation does not wind back."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.generator = site.generator

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if self.training:
            x = x * torch.randn(x.shape, generator=self.generator).to(x)
        return super().forward(x, layout)


class Forgetful(KernelCore):
    """Leaves the last token of each piece out of the state."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, after = super().extend(q, k, v, layout, state)
        _, wrong = super().extend(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], layout, state)
        return o, wrong if q.shape[2] > 1 else after


class Edged(Forgetful):
    """Leaves the last token out where a piece fills blocks of 32, and only there."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        fills = q.shape[2] % 32 == 0
        return (super() if fills else super(Forgetful, self)).extend(q, k, v, layout, state)


class Growing(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, (sums, norm) = super().extend(q, k, v, layout, (state[0], state[1][:, :, : q.shape[-1]]))
        return o, (sums, torch.cat((norm, norm), 2))


class Cutting(KernelCore):
    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        return super().extend(q, k, v, layout, tuple(part.detach() for part in state))


class BatchLast(KernelCore):
    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        return tuple(part.movedim(0, -1) for part in super().initial_state(shape, like))

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        o, after = super().extend(q, k, v, layout, tuple(part.movedim(-1, 0) for part in state))
        return o, tuple(part.movedim(0, -1) for part in after)


class Stopped(Honest):
    """Rotates every piece as if the stream began there."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        return super().extend(flow, layout._replace(start=None))


def declaring(core: type[KernelCore] = KernelCore, **traits: object) -> type[Honest]:
    class Declared(Honest):
        def __init__(self, site: Site) -> None:
            MultiHead.__init__(self, site, core(site, **traits))

    return Declared


class DenseWindow(KernelCore):
    """A band of 16, by a mask over all scores."""

    has_window = True

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return super().seen(q, layout).triu(-15).tril(15)


class Plain(nn.Module):
    """Position-wise; what each test below spoils."""

    traits = Traits(sees_order=False)

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x)


class Narrowing(Plain):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout).float()


class NeedsTwo(Plain):
    """Divides by a deviation that one token does not have."""

    traits = Traits(supports=frozenset())

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        deviation = (x - x.mean(1, keepdim=True)).square().sum(1, keepdim=True)
        return super().forward(x, layout) * x / (deviation / (x.shape[1] - 1)).sqrt()


class Bytes(Plain):
    """Reads its weights at construction, which have no contents on the meta device."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.scale = self.linear.weight.abs().max().item()


class Overflowing(Plain):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout) * 1e300 * 1e-300


class UnknownFact(Plain):
    traits = Traits(supports=frozenset({"keep", "mask"}))


class SumsToMore(KernelCore):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        return super().forward(q, k, v, layout) * 1.001


class Raises(Plain):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[1] % 2:
            raise RuntimeError("length must be even")
        return super().forward(x, layout)


class Encoder(Honest):
    def __init__(self, site: Site) -> None:
        if site.causal:
            raise Unsupported("Encoder looks both ways")
        super().__init__(site)


class Decoder(Honest):
    def __init__(self, site: Site) -> None:
        if not site.causal:
            raise Unsupported("Decoder looks back only")
        super().__init__(site)

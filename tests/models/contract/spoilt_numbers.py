"""Mixers with wrong gradients, precisions or costs, and mixers that look ahead at some places."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from lra.models.mixer import Flow, Layout, Site, State, Traits
from tests.models.contract.spoilt_mixers import Honest, KernelCore, declaring


class _Scaled(torch.autograd.Function):
    """Hands the input on, and its gradient times a factor."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def scaled(factor: float, *, masked: bool = False, training: bool = False) -> type[Honest]:
    """Values honest, gradients of queries times a factor: always, or under a mask alone."""

    class Scaled(Honest):
        def forward(self, x: Tensor, layout: Layout) -> Tensor:
            q, k, v = self.project(x, layout)
            if (layout.keep is not None or not masked) and (self.training or not training):
                q = _Scaled.apply(q, factor)
            return self.merge(self.core(q, k, v, layout))

    return Scaled


class DetachedInPart(Honest):
    """Half of what queries learn is cut off."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.project(x, layout)
        return self.merge(self.core((q + q.detach()) / 2, k, v, layout))


class DetachedNorm(KernelCore):
    """The sum of weights is taken for a constant."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        weight = self.features(q) @ self.features(k).mT * self.seen(q, layout)
        if layout.keep is not None:
            weight = weight * layout.keep[:, None, None]
        return weight @ v / weight.sum(-1, keepdim=True).detach().clamp(min=1e-30)


class DetachedFromTheSecondChunk(Honest):
    """Keys and values of earlier chunks of 128 reach later ones without history."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.project(x, layout)
        k = torch.cat((k[:, :, :128], k[:, :, 128:].detach()), dim=2)
        return self.merge(self.core(q, k, v, layout))


def detaching(path: str) -> type[Honest]:
    """Queries, keys, values or a parameter of that name are taken for constants."""

    class Detaching(Honest):
        def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
            parts = dict(zip("qkv", super().project(x, layout), strict=True))
            if path in parts:
                parts[path] = parts[path].detach()
            return parts["q"], parts["k"], parts["v"]

        def merge(self, o: Tensor) -> Tensor:
            y = super().merge(o)
            if path != "out_proj.bias":
                return y
            bias = self.out_proj.bias  # half of what it learns is left
            return y + (bias.detach() - bias) / 2

    return Detaching


class DetachedSums(KernelCore):
    """What a state has summed up is a constant for those that read it."""

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        (sums, norm) = state
        return super().extend(q, k, v, layout, (sums.detach(), norm))


class DetachedWeights(Honest):
    """Along time the weights of the keys learn nothing, the input does."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is None:
            return super().extend(flow, layout)
        linear = {"weight": self.k_proj.weight.detach(), "bias": self.k_proj.bias.detach()}
        honest, self.k_proj = self.k_proj, _Constant(**linear)
        try:
            return super().extend(flow, layout)
        finally:
            self.k_proj = honest


class _Constant(nn.Module):
    """A projection of which nothing is learnt."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.map = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, *self.map)


class _FrozenTogether(torch.autograd.Function):
    """A product whose backward pass does nothing where the input needs no gradient."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        if not ctx.needs_input_grad[0]:
            return None, None
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum((0, 1))


class FrozenTogether(Honest):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.gain = nn.Parameter(torch.ones(site.width))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(_FrozenTogether.apply(x, self.gain), layout)


class _Rounded(torch.autograd.Function):
    """Straight-through: rounds forward, hands the gradient on."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return (x * 4).round() / 4

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient


def straight_through(*, declared: bool) -> type[Honest]:
    """Rounds queries, with a surrogate gradient."""

    class StraightThrough(declaring(surrogate_gradient=declared)):  # type: ignore[misc]
        def project(self, x: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = super().project(x, layout)
            return _Rounded.apply(q), k, v

    return StraightThrough


# --- look-ahead -----------------------------------------------------------------------------


def glimpsing(
    token: int, ahead: int = 1, *, strength: float = 1e-3, once: bool = False
) -> type[Honest]:
    """A causal mixer whose tokens from `token` on, or it alone, see the one that is `ahead`."""

    class Glimpsing(Honest):
        def forward(self, x: Tensor, layout: Layout) -> Tensor:
            y = super().forward(x, layout)
            later = torch.cat((x[:, ahead:], torch.zeros_like(x[:, :ahead])), dim=1)
            place = torch.arange(x.shape[1], device=x.device)[:, None]
            chosen = place == token if once else place >= token
            return y + chosen * (strength * later[:, : x.shape[1]])

    return Glimpsing


class GlimpsesTheEnd(Honest):
    """Of any sequence, the last token but one sees the last."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        return torch.cat((y[:, :-2], y[:, -2:-1] + 1e-3 * x[:, -1:], y[:, -1:]), dim=1)[
            :, -x.shape[1] :
        ]


class SeesItsBlock(KernelCore):
    """Tokens see to the end of their block of 48."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        end = (place // 48 + 1) * 48
        return (place < end[:, None]).to(q.dtype)


class PeeksUnderAMask(KernelCore):
    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return q.new_ones(q.shape[2], q.shape[2]).tril(int(layout.keep is not None))


# --- precision ------------------------------------------------------------------------------


def rounding(inner: torch.dtype, only: torch.dtype | None = None) -> type[Honest]:
    """Values pass through a lower precision: always, or in one precision alone."""

    class Rounding(Honest):
        def forward(self, x: Tensor, layout: Layout) -> Tensor:
            y = super().forward(x, layout)
            return y.to(inner).to(y.dtype) if only in (None, y.dtype) else y

    return Rounding


class Exploding(KernelCore):
    """Exponents that nothing is taken from."""

    def features(self, x: Tensor) -> Tensor:
        return x.exp()


class Vanishing(KernelCore):
    """Weights that are 0 in float32 for all but small queries, with a constant below."""

    def features(self, x: Tensor) -> Tensor:
        return (-x.square() / 20).exp()


# --- costs ----------------------------------------------------------------------------------


class Linear(nn.Module):
    """A mean of all tokens in linear time; what is spoilt below."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.linear = nn.Linear(site.width, site.width)
        self.traits = Traits(supports=frozenset())

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.linear(x - x.mean(1, keepdim=True))


class DenseOnTheSide(Linear):
    """Sorts a distance of all pairs, of which little is used and nothing kept."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        place = x.detach()[..., 0]
        largest = (place[:, None] - place[..., None]).abs().amax((1, 2))
        return super().forward(x, layout) + 1e-3 * largest[:, None, None]


class LevelsOnTheSide(Linear):
    """Adds tokens at distances 1, 2, 4, … element by element, which no count of products has."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        sums, far = x.detach(), 1
        while far < x.shape[1]:
            sums, far = (
                sums + 0.5 * nn.functional.pad(sums, (0, 0, far, 0))[:, : x.shape[1]].cos(),
                2 * far,
            )
        return super().forward(x, layout) + 1e-3 * sums


class DenseWithoutGradient(Linear):
    """Forms all scores where no gradient is asked for."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if not torch.is_grad_enabled():
            mean = torch.ones_like(x @ x.mT) @ x / x.shape[1]
            return self.linear(x - mean)
        return super().forward(x, layout)


class NeedsRows(Linear):
    """Lets the number of pairs of channels be worked out from the number of elements."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        pairs = x.reshape(*x.shape[:2], -1, 2)
        return super().forward(pairs.flatten(2), layout)


class EndsEarly(Linear):
    """Says that any length will do, and has a table of the site's length."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.table = nn.Parameter(torch.zeros(site.max_length, site.width))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if x.shape[1] > len(self.table):
            raise ValueError(f"the table ends at {len(self.table)}: got {x.shape[1]} tokens")
        return super().forward(x, layout) + self.table[: x.shape[1]]


class StandardisesTokens(Honest):
    """Divides by the deviation of the tokens, of which equal ones have none."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, supports=frozenset({"start"}))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        return y if x.shape[1] < 2 else y / x.std(1, keepdim=True)


class SkipsEqualTokens(Honest):
    """Has nothing to mix where all tokens are equal."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        return 0 * y if x.shape[1] > 1 and bool((x == x[:, :1]).all()) else y


class RootsOfNothing(Honest):
    """Has an infinite slope where tokens are equal."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, supports=frozenset({"start"}))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        spread = (x - x[:, :1]).square().sum((1, 2), keepdim=True)
        return super().forward(x, layout) * (1 + spread.sqrt())

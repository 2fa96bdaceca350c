"""Mixers that confuse rows, heads, padding, places, documents, prefixes or global tokens."""

from dataclasses import replace

import torch
from torch import Tensor

from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import FACTS, Flow, Growth, Layout, Positions, Site, Traits
from lra.models.multi_head import MultiHead
from lra.models.positions import rotate
from tests.models.contract.spoilt_mixers import Honest, KernelCore


class MixesTwoRows(Honest):
    """Of a batch, the fifth row gets a little of the seventh."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        if len(x) > 6:
            y = y.clone()
            y[4] = y[4] + 1e-3 * x[6]
        return y


class KnowsItsPlaceInTheBatch(Honest):
    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        rows = torch.arange(len(x), device=x.device)[:, None, None]
        return super().forward(x, layout) * (1 + 1e-3 * rows)


class MaskOfTheFirst(Honest):
    """Hides what the first row of the mask says."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, supports=frozenset(), hides_others=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if layout.keep is not None:
            x = x.masked_fill(~layout.keep[:1, :, None], 0.0)
        return super().forward(x, Layout())


class SaysBothOfItsMask(MaskOfTheFirst):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, supports=frozenset({"keep"}))


class SwapsHeads(KernelCore):
    """Values of the last two heads are swapped: with two heads, of both."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        order = [*range(v.shape[1] - 2), v.shape[1] - 1, v.shape[1] - 2]
        return super().forward(q, k, v[:, order], layout)


class FoldsByReshape(Honest):
    """Folds heads back without the transposition."""

    def merge(self, o: Tensor) -> Tensor:
        return self.out_proj(o.reshape(o.shape[0], o.shape[2], -1))


class CountsPadding(Honest):
    """A running mean of projected tokens, divided by the number of all that came before."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, row_stochastic=False)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        v = self.v_proj(x)
        if layout.keep is not None:
            v = v * layout.keep[..., None]
        place = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return self.out_proj(v.cumsum(1) / place)


class _MaskedForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, keep: Tensor) -> Tensor:
        return x * keep

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class GradientsReachPadding(Honest):
    """Zeroes padding forward, and lets gradients through to it backward."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = Traits(causal=site.causal, operations=Growth(1.0), surrogate_gradient=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        keep = torch.ones_like(x[..., :1])
        if layout.keep is not None:
            keep = layout.keep[..., None].to(x)
        total = _MaskedForward.apply(self.v_proj(x), keep).sum(1, keepdim=True)
        return self.out_proj(total / keep.sum(1, keepdim=True).clamp(min=1)).expand_as(x)


# --- start ----------------------------------------------------------------------------------


class StartOfTheFirst(Honest):
    """Shifts every row as the first."""

    def project(self, x: Tensor, layout: Layout):
        if layout.start is not None:
            layout = layout._replace(start=layout.start[:1].expand_as(layout.start))
        return super().project(x, layout)


class KeysWithoutStart(Honest):
    def project(self, x: Tensor, layout: Layout):
        q, k, v = super().project(x, layout)
        return (q, super().project(x, Layout())[1], v) if layout.start is not None else (q, k, v)


class StartOffByOne(Honest):
    def project(self, x: Tensor, layout: Layout):
        start = None if layout.start is None else layout.start + (layout.start > 0).long()
        return super().project(x, layout._replace(start=start))


class ContinuesAsTheFirst(Honest):
    """Continues every row where the first one stands."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is not None and layout.start is not None:
            layout = layout._replace(start=layout.start[:1].expand_as(layout.start))
        return super().extend(flow, layout)


# --- documents, prefixes, global tokens -----------------------------------------------------


class Reader(KernelCore):
    """Honours all that a layout can say; sees 8 tokens back and ahead, so that global is more."""

    reach, has_window = 8, True

    def __init__(self, site: Site) -> None:
        fields = frozenset(FACTS) - ({"order"} if site.causal else set())
        super().__init__(site, supports=fields, operations=Growth(2.0))

    def window(self, place: Tensor) -> Tensor:
        return (place - place[:, None]).abs() <= self.reach

    def prefix(self, layout: Layout, place: Tensor) -> Tensor:
        return (place < layout.prefix[:, None])[:, None] & (place < layout.prefix[:, None])[
            ..., None
        ]

    def document(self, layout: Layout) -> Tensor:
        return layout.document[:, None] == layout.document[..., None]

    def widened(self, layout: Layout) -> Tensor:
        return layout.is_global[:, None] | layout.is_global[..., None]

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        seen = self.window(place)[None]
        if layout.is_global is not None:
            seen = seen | self.widened(layout)
        if self.traits.causal:
            past = (place <= place[:, None])[None]
            seen = seen & past
            if layout.prefix is not None:
                seen = seen | self.prefix(layout, place)
        if layout.document is not None:
            seen = seen & self.document(layout)
        if layout.order is not None:
            seen = seen & self.ranked(layout.order)
        return seen[:, None].to(q.dtype)

    def ranked(self, order: Tensor) -> Tensor:
        return order[:, None] <= order[..., None]

    def initial_state(self, shape, like):
        return self.refused()

    def refused(self):
        from lra.models.mixer import Unsupported

        raise Unsupported("a window has no sums to carry")


class IgnoresDocument(Reader):
    def document(self, layout: Layout) -> Tensor:
        return torch.ones_like(super().document(layout))


class DocumentOfTheFirst(Reader):
    """Takes the first row's documents for those of all."""

    def document(self, layout: Layout) -> Tensor:
        return super().document(layout)[:1]


class SeesNextDocument(Reader):
    """Takes numbers that differ by no more than one for one document."""

    def document(self, layout: Layout) -> Tensor:
        number = layout.document
        return (number[:, None] - number[..., None]).abs() <= 1


class WideReader(Reader):
    """Sees everything that comes before: what a prefix is for."""

    reach, has_window = 10**6, False


class IgnoresPrefix(WideReader):
    def prefix(self, layout: Layout, place: Tensor) -> Tensor:
        return torch.zeros_like(super().prefix(layout, place))


class PrefixOfTheFirst(WideReader):
    def prefix(self, layout: Layout, place: Tensor) -> Tensor:
        return super().prefix(layout, place)[-1:]


class OpensOneMore(WideReader):
    """The first token behind the prefix is seen as well."""

    def prefix(self, layout: Layout, place: Tensor) -> Tensor:
        return super().prefix(layout._replace(prefix=layout.prefix + (layout.prefix > 1)), place)


class WeighsPrefixTwice(WideReader):
    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        seen = super().seen(q, layout)
        if layout.prefix is None or not self.traits.causal:
            return seen
        place = torch.arange(q.shape[2])
        return seen + (place > place[:, None]) * seen


class PrefixTakesSight(WideReader):
    """Hides what is behind the prefix where nothing is hidden."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        seen = super().seen(q, layout)
        if layout.prefix is None:
            return seen
        return seen * self.prefix(layout, torch.arange(q.shape[2]))[:, None]


class IgnoresOrder(Reader):
    def ranked(self, order: Tensor) -> Tensor:
        return torch.ones_like(super().ranked(order))


class OrderOfTheFirst(WideReader):
    """Takes the first row's ranks for those of all."""

    def ranked(self, order: Tensor) -> Tensor:
        return super().ranked(order[:1])


class SeesNextRank(Reader):
    def ranked(self, order: Tensor) -> Tensor:
        return order[:, None] <= order[..., None] + 1


class HidesRankZero(WideReader):
    def ranked(self, order: Tensor) -> Tensor:
        return super().ranked(order) & (order != 0)[:, None]


class QueriesForgetTheirRanks(SoftmaxAttention):
    """Lets queries of another rank see what keys at their places see."""

    def attend(self, x, layout: Layout, source, source_layout: Layout, at=None) -> Tensor:
        return super().attend(x, source_layout, source, source_layout, at)


class OrderBesideCausality(Reader):
    """Says that it supports ranks where it looks at earlier tokens alone."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, supports=frozenset(FACTS))


class IgnoresGlobal(Reader):
    def widened(self, layout: Layout) -> Tensor:
        return torch.zeros_like(super().widened(layout))


class GlobalSeesOnly(Reader):
    """Global tokens see all, and are not seen."""

    def widened(self, layout: Layout) -> Tensor:
        return layout.is_global[..., None].expand(-1, -1, layout.is_global.shape[1])


class GlobalIsSeenOnly(Reader):
    """Global tokens are seen by all, and see no more than others."""

    def widened(self, layout: Layout) -> Tensor:
        return layout.is_global[:, None].expand(-1, layout.is_global.shape[1], -1)


class GlobalOfAnyRow(Reader):
    """A token that is global in one row is so in all."""

    def widened(self, layout: Layout) -> Tensor:
        return super().widened(layout).any(0, keepdim=True)


class GlobalLooksAhead(Reader):
    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        seen = super().seen(q, layout)
        if layout.is_global is None:
            return seen
        return (seen + super().widened(layout)[:, None].to(q.dtype)).clamp(max=1)


class ExtendForgetsMask(Honest):
    """Has an `extend` of its own, which knows no padding."""

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is None:
            return flow._replace(x=self.forward(flow.x, Layout()))
        return super().extend(flow, layout)


class LosesPenalties(Honest):
    def extend(self, flow: Flow, layout: Layout) -> Flow:
        after = super().extend(flow, layout)
        return Flow(after.x, after.state)


class WritesToState(KernelCore):
    """Adds to the sums that it was given."""

    def extend(self, q, k, v, layout: Layout, state):
        o, (sums, norm) = super().extend(q, k, v, layout, state)
        return o, (state[0].copy_(sums), state[1].copy_(norm))


class RotatesTwice(MultiHead):
    """Rotates what is rotated already: distances count double, which no check of ours can tell."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, KernelCore(site))
        self.inside = site.positions is Positions.rotary

    def project(self, x: Tensor, layout: Layout):
        q, k, v = super().project(x, layout)
        return (rotate(q, layout.start), rotate(k, layout.start), v) if self.inside else (q, k, v)


class CrossForgetsMask(Honest):
    """Attends to another sequence, padding and all."""

    def __init__(self, site: Site) -> None:
        MultiHead.__init__(self, site, CrossCore(site, cross=True))

    def attend(self, x: Tensor, layout: Layout, source: Tensor, source_layout: Layout) -> Tensor:
        return super().attend(x, layout, source, Layout())


class CrossCore(KernelCore):
    """Honest, with keys of another length."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return q.new_ones(())

"""Mixers that honour a mask by itself, and not beside another, at positions, or in a precision."""

from dataclasses import replace

import torch
from torch import Tensor

from lra.models.mixer import Layout, Positions, Site
from tests.models.contract.spoilt_layouts import WideReader
from tests.models.contract.spoilt_mixers import Honest, KernelCore


class LooksFurther(WideReader):
    """Says that it reaches fewer tokens."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, reach=2)


class DocumentForgottenBesidePadding(WideReader):
    def document(self, layout: Layout) -> Tensor:
        same = super().document(layout)
        return same if layout.keep is None else torch.ones_like(same)


class DocumentModulo256(WideReader):
    """Keeps numbers of documents in a byte."""

    def document(self, layout: Layout) -> Tensor:
        return super().document(layout._replace(document=layout.document.to(torch.uint8)))


class DocumentInFloat32(WideReader):
    def document(self, layout: Layout) -> Tensor:
        return super().document(layout._replace(document=layout.document.float()))


class NegativeIsNoDocument(WideReader):
    """Lets tokens of negative documents be seen by all."""

    def document(self, layout: Layout) -> Tensor:
        return super().document(layout) | (layout.document < 0)[:, None]


class NegativeRanksAreEqual(WideReader):
    def ranked(self, order: Tensor) -> Tensor:
        return super().ranked(order.clamp(min=0))


class OrderForgottenBesideDocument(WideReader):
    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        return super().seen(q, layout if layout.document is None else layout._replace(order=None))


class PrefixOpensDocuments(WideReader):
    """Adds what a prefix opens to what documents leave."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        seen = super().seen(q, layout)
        if layout.prefix is None or not self.traits.causal:
            return seen
        place = torch.arange(q.shape[2])
        return torch.maximum(seen, self.prefix(layout, place)[:, None].to(seen))


class HidesMoreBesidePadding(WideReader):
    """Under padding, a token sees those of its document that come before alone."""

    def document(self, layout: Layout) -> Tensor:
        same = super().document(layout)
        return same if layout.keep is None else same.tril()


class CountsRealTokens(KernelCore):
    """Takes the real tokens for the first ones, however many there are."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if layout.keep is not None:
            place = torch.arange(q.shape[2], device=q.device)
            first = place < layout.keep.sum(1, keepdim=True)
            layout = layout._replace(keep=first if (~layout.keep[:, 0]).any() else layout.keep)
        return super().forward(q, k, v, layout)


class DocumentWithoutPositions(Honest):
    """Forgets documents where it applies positions itself."""

    core_class = WideReader

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.inside = site.positions == Positions.position_infused

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, layout._replace(document=None) if self.inside else layout)


class CountsPaddingInBfloat16(KernelCore):
    """Lets padding, which stands as zeros, weigh as much as any token."""

    rounded = torch.bfloat16

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        keep = None if q.dtype == self.rounded else layout.keep
        return super().forward(q, k, v, layout._replace(keep=keep))


class CountsPaddingInFloat32(CountsPaddingInBfloat16):
    rounded = torch.float32


class SeesPaddingInBfloat16(Honest):
    rounded = torch.bfloat16

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return super().forward(x, Layout() if x.dtype == self.rounded else layout)


class SeesPaddingInFloat32(SeesPaddingInBfloat16):
    rounded = torch.float32


class AheadUnderAutocast(KernelCore):
    """Makes its causal mask for the types of the parameters."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        autocast = torch.is_autocast_enabled("cpu")
        return torch.ones_like(super().seen(q, layout)) if autocast else super().seen(q, layout)


class LosesTheThird(Honest):
    """Mixes tokens in blocks of 32, and takes a length of three for that of two."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = replace(self.traits, supports=frozenset({"start"}))

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = self.project(x, layout)
        keys = x.shape[1] - (x.shape[1] % 96 == 0)
        weight = self.core.features(q) @ self.core.features(k[:, :, :keys]).mT
        return self.merge(weight / weight.sum(-1, keepdim=True) @ v[:, :, :keys])


class MissesTheEvenHundred(KernelCore):
    """Leaves out the last key of sequences that fill blocks of 96."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        if q.shape[2] % 96 == 0:
            keep = torch.ones(len(q), q.shape[2], dtype=torch.bool)
            keep = keep if layout.keep is None else layout.keep.clone()
            keep[:, -1] = False
            layout = layout._replace(keep=keep)
        return super().forward(q, k, v, layout)


class CutsItsLastChunk(KernelCore):
    """Weighs by twice what stands in an incomplete chunk of 64 behind complete ones."""

    def seen(self, q: Tensor, layout: Layout) -> Tensor:
        length = q.shape[2]
        place = torch.arange(length)
        behind = (place >= length - length % 64) & (length > 64)
        return super().seen(q, layout) * (1 + behind.to(q))

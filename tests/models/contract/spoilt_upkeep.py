"""Mixers that hold what they should not, round what they carry, or take a dearer way."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lra.models.mixer import Layout, Positions, Site
from tests.models.contract.spoilt_mixers import Honest, KernelCore, Plain


class KeepsWeights(KernelCore):
    """Appends the features of every pass to a list."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.seen_so_far: list[Tensor] = []

    def features(self, x: Tensor) -> Tensor:
        self.seen_so_far.append(super().features(x).detach())
        return self.seen_so_far[-1] + 0 * x


class TableOfAnyLayer(Plain):
    """Looks up by length alone a table that depends on the layer."""

    tables: ClassVar[dict[int, Tensor]] = {}

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.layer = site.layer

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        length = x.shape[1]
        if length not in self.tables:
            self.tables[length] = torch.arange(length)[:, None] * 0.1 * (1 + self.layer)
        return super().forward(x, layout) + self.tables[length].to(x)


class NewParameter(Honest):
    """Replaces a parameter, of which the optimiser has the old one."""

    def after_step(self, step: int, generator: torch.Generator) -> None:
        self.v_proj.weight = nn.Parameter(0.9 * self.v_proj.weight)


class IgnoresItsEncoding(Honest):
    """Says that it turns queries and keys, and does not."""

    def __init__(self, site: Site) -> None:
        super().__init__(replace(site, positions=Positions.none))


class CarriesBfloat16(KernelCore):
    """Sums in chunks, and rounds what goes from chunk to chunk to the type of the input."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        state = self.initial_state((*q.shape, v.shape[-1]), q)
        out = []
        for parts in zip(*(each.split(16, 2) for each in (q, k, v)), strict=True):
            kind = q.dtype
            wide = [part.float() if kind == torch.bfloat16 else part for part in (*parts, *state)]
            o, state = self.extend(*wide[:3], layout, tuple(wide[3:]))
            state = tuple(part.to(kind) for part in state)
            out.append(o.to(kind))
        return torch.cat(out, 2)


class DenseInTraining(Plain):
    """Forms all pairs in training, and not in evaluation."""

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        y = super().forward(x, layout)
        return y + 0 * ((x @ x.mT) @ x) if self.training else y

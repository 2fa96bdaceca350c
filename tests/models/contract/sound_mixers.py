"""Sound mixers of kinds that no family has: what the contract kit must accept."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Growth, Layout, Site, Traits, Unsupported
from lra.models.multi_head import MultiHead
from tests.models.contract.spoilt_layouts import WideReader


class _Hardest(WideReader):
    """The value of the largest score alone; backward is that of the softmax."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.traits = Traits(
            supports=self.traits.supports - {"is_global"},
            causal=site.causal,
            operations=Growth(2.0),
            memory=Growth(2.0),
            row_stochastic=True,
            surrogate_gradient=True,
            sees_order=site.causal,
        )

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        seen = self.seen(q, layout) > 0
        if layout.keep is not None:
            seen = seen & layout.keep[:, None, None]
        scores = (q @ k.mT).masked_fill(~seen, torch.finfo(q.dtype).min)
        soft = scores.softmax(-1)
        hard = F.one_hot(scores.argmax(-1), k.shape[2]).to(v)
        return (hard - soft.detach() + soft) @ v


class HardAttention(MultiHead):
    def __init__(self, site: Site) -> None:
        super().__init__(site, _Hardest(site))


class SpatialGating(nn.Module):
    """A learned map along the length gates the tokens (gMLP, Liu et al. 2021, arXiv:2105.08050)."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        if site.causal:
            raise Unsupported("the map reads all tokens")
        self.inside, self.outside = (nn.Linear(site.width, site.width) for _ in range(2))
        self.map = nn.Parameter(torch.randn(site.max_length, site.max_length) / site.max_length)
        self.bias = nn.Parameter(torch.ones(site.max_length, 1))
        self.traits = Traits(
            supports=frozenset({"keep"}), max_length=site.max_length, operations=Growth(2.0)
        )

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        length, values = x.shape[1], self.inside(x)
        if layout.keep is not None:
            values = values.masked_fill(~layout.keep[..., None], 0.0)
        gate = self.map[:length, :length] @ values + self.bias[:length]
        return self.outside(x * gate)

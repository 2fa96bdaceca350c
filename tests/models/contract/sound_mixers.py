"""Sound mixers of kinds that no family has: what the contract kit must accept."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.mixer import Flow, Growth, Layout, Site, State, Traits, Unsupported
from models.multi_head import MultiHead
from tests.models.contract.spoilt_layouts import WideReader
from tests.models.contract.spoilt_mixers import KernelCore


class _Decaying(KernelCore):
    """Weights that decay with distance; the state with them."""

    def __init__(self, site: Site) -> None:
        if not site.causal:
            raise Unsupported("retention looks back alone")
        super().__init__(site, row_stochastic=False)
        self.register_buffer("decay", 1 - 2.0 ** (-2 - torch.arange(site.heads)))

    def powers(self, exponents: Tensor) -> Tensor:
        return self.decay[:, None, None] ** exponents.to(self.decay)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        weight = q @ k.mT * self.powers((place[:, None] - place).clamp(min=0)).to(q)
        weight = weight * self.seen(q, layout)
        if layout.keep is not None:
            weight = weight * layout.keep[:, None, None]
        return weight @ v

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        b, h, _, k, v = shape
        return (like.new_zeros(b, h, k, v),)

    def extend(self, q, k, v, layout: Layout, state) -> tuple[Tensor, State]:
        (before,), length = state, q.shape[2]
        place = torch.arange(1, length + 1)[:, None]
        o = self.forward(q, k, v, Layout()) + self.powers(place).to(q) * (q @ before.to(q))
        left = self.powers(length - place).to(k) * k
        return o, (self.powers(torch.tensor([[length]])).to(before) * before + left.mT @ v,)


class Retention(MultiHead):
    """A recurrence that forgets, in its parallel form (Sun et al. 2023, arXiv:2307.08621)."""

    def __init__(self, site: Site) -> None:
        super().__init__(site, _Decaying(site))


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


class GRU(nn.Module):
    """A nonlinear recurrence, by PyTorch's layer; it knows no padding."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        if not site.causal:
            raise Unsupported("a recurrence looks back alone")
        self.layer = nn.GRU(site.width, site.width, batch_first=True)
        self.traits = Traits(supports=frozenset({"start"}), causal=True)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        return self.layer(x)[0] if x.numel() else x

    def initial_state(self, batch_size: int, memory: int) -> State:
        return self.layer.weight_hh_l0.new_zeros(batch_size, self.layer.hidden_size)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        if flow.state is None:
            return flow._replace(x=self.forward(flow.x, layout))
        y, last = self.layer(flow.x, flow.state[None].to(flow.x.dtype))
        return flow._replace(x=y, state=last[0].to(flow.state.dtype))


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


class LongConvolution(nn.Module):
    """A filter as long as the sequence for each channel (Poli et al. 2023, arXiv:2302.10866)."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        if not site.causal:
            raise Unsupported("the filter looks back alone")
        self.filter = nn.Parameter(torch.randn(site.max_length, site.width) / site.max_length)
        self.outside = nn.Linear(site.width, site.width)
        self.traits = Traits(
            supports=frozenset({"keep"}),
            causal=True,
            max_length=site.max_length,
            operations=Growth(1.0, log=True),
        )

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        if not x.numel():
            return x
        if layout.keep is not None:
            x = x.masked_fill(~layout.keep[..., None], 0.0)
        length, double = x.shape[1], torch.float64 if x.dtype == torch.float64 else torch.float32
        parts = (
            torch.fft.rfft(z.to(double), 2 * length, dim=-2) for z in (x, self.filter[:length])
        )
        one, other = parts
        y = torch.fft.irfft(one * other, 2 * length, dim=-2)[:, :length]
        return self.outside(y.to(x.dtype))

"""Synthetic attention as loops: what its tests compare with."""

import pytest
import torch
from torch import Tensor

from models.families.synthesizer import Component, Synthesizer
from models.mixer import Site

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
EACH = [[component] for component in Component]
MIXTURES = [
    [Component.random, Component.dot],
    [Component.dense, Component.dot],
    [Component.factorised_random, Component.factorised_dense, Component.fixed_random],
    [Component.factorised_random, Component.random],
    [*Component][:2] + [*Component][3:],
]
KINDS = pytest.mark.parametrize("components", EACH + MIXTURES, ids="+".join)
COMMON = [Component.random, Component.fixed_random, Component.factorised_random]
LONGEST, WIDTH, HEADS = 23, 12, 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def built(*components: Component, dropout: float = 0.0, **options) -> Synthesizer:
    """A mixer all of whose parameters matter: none is near zero."""
    facts = {name: options.pop(name) for name in ("causal", "positions") if name in options}
    torch.manual_seed(1)
    site = Site(
        width=WIDTH, heads=HEADS, max_length=LONGEST, attention_dropout=dropout,
        generator=torch.Generator().manual_seed(4), **facts,
    )  # fmt: skip
    mixer = Synthesizer(site, components=list(components), rank=2, **options).double().eval()
    for number, parameter in enumerate(mixer.parameters()):
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(number))
    return mixer


def padding(length: int) -> Tensor:
    keep = torch.rand(4, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[0] = True
    keep[1, : length // 2] = False  # rows that find nothing when causal
    return keep


def logits_of(mixer: Synthesizer, component: Component, x: Tensor, b: int, h: int) -> Tensor:
    """One example's and one head's logits, from the paper."""
    n, d = x.shape[1], WIDTH // HEADS
    part = slice(h * d, (h + 1) * d)
    if component is Component.dense:
        hidden = mixer.dense_in(x[b])[:, part].relu()
        return (hidden @ mixer.dense_out[h].T + mixer.dense_bias[h, :, 0])[:, :n]
    if component is Component.factorised_dense:
        a, c = mixer.first_proj(x[b]), mixer.second_proj(x[b])
        inner, outer = a.shape[1] // HEADS, c.shape[1] // HEADS
        a, c = a[:, h * inner : (h + 1) * inner], c[:, h * outer : (h + 1) * outer]
        columns = [a[:, j % inner] * c[:, j // inner] for j in range(n)]
        return torch.stack(columns, -1)
    if component is Component.factorised_random:
        return (mixer.left[h] @ mixer.right[h].T)[:n, :n]
    if component is Component.dot:
        q, k = mixer.q_proj(x[b])[:, part], mixer.k_proj(x[b])[:, part]
        return q @ k.T / d**0.5
    return mixer.table[h, :n, :n]


def literal(mixer: Synthesizer, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The paper's equation, one head of one example after the other."""
    n, d = x.shape[1], WIDTH // HEADS
    heads, values = [], mixer.v_proj(x)
    for b in range(len(x)):
        for h in range(HEADS):
            total = torch.zeros(n, n, dtype=x.dtype)
            for index, component in enumerate(mixer.components):
                alpha = 1.0
                if mixer.alpha is not None:
                    raw = mixer.alpha[:, h, 0, 0].exp()
                    alpha = raw[index] / raw.sum()
                total = total + alpha * logits_of(mixer, component, x, b, h)
            seen = torch.ones(n, n, dtype=torch.bool)
            if mixer.causal:
                seen = seen.tril()
            if keep is not None:
                seen = seen & keep[b]
            weights = torch.where(seen, total.exp(), 0)
            weights = weights / weights.sum(1, keepdim=True).clamp_min(1e-300)
            heads.append(weights @ values[b, :, h * d : (h + 1) * d])
    o = torch.stack(heads).view(len(x), HEADS, n, d)
    return mixer.out_proj(o.transpose(1, 2).flatten(-2))

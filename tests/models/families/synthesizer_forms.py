"""Draws and small mixers for the tests of the Synthesizer, and its literal form."""

import pytest
import torch
from torch import Tensor

from lra.models.families.synthesizer import Component, Synthesizer
from tests.attention import builder
from tests.literal import synthesizer as reference

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


def built(*components: Component, **options) -> Synthesizer:
    """A mixer all of whose parameters matter: none is near zero."""
    if Component.factorised_random in components:
        options["rank"] = 2
    usual = builder(Synthesizer, width=WIDTH, heads=HEADS, max_length=LONGEST)
    mixer = usual(components=[*components], **options)
    for number, parameter in enumerate(mixer.parameters()):
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(number))
    return mixer


def padding(length: int) -> Tensor:
    keep = torch.rand(4, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[0] = True
    keep[1, : length // 2] = False  # rows that find nothing when causal
    return keep


def logits_of(mixer: Synthesizer, component: Component, x: Tensor, b: int, h: int) -> Tensor:
    """One example's and one head's logits, from the mixer's parameters."""
    n, d = x.shape[1], WIDTH // HEADS
    part = slice(h * d, (h + 1) * d)
    if component is Component.dense:
        hidden = mixer.dense_in(x[b])[:, part]
        return reference.dense_logits(hidden, mixer.dense_out[h], mixer.dense_bias[h, :, 0])
    if component is Component.factorised_dense:
        a, c = mixer.first_proj(x[b]), mixer.second_proj(x[b])
        inner, outer = a.shape[1] // HEADS, c.shape[1] // HEADS
        return reference.factorised_dense_logits(
            a[:, h * inner : (h + 1) * inner], c[:, h * outer : (h + 1) * outer]
        )
    if component is Component.factorised_random:
        return reference.factorised_random_logits(mixer.left[h], mixer.right[h], n)
    if component is Component.dot:
        return reference.dot_logits(mixer.q_proj(x[b])[:, part], mixer.k_proj(x[b])[:, part])
    return mixer.table[h, :n, :n]


def literal(mixer: Synthesizer, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """The paper's equation, one head of one example after the other."""
    n, d = x.shape[1], WIDTH // HEADS
    heads, values = [], mixer.v_proj(x)
    for b in range(len(x)):
        for h in range(HEADS):
            o = reference.synthesizer_attention(
                [logits_of(mixer, component, x, b, h) for component in mixer.components],
                values[b, :, h * d : (h + 1) * d],
                None if mixer.alpha is None else mixer.alpha[:, h, 0, 0],
                causal=mixer.causal,
                keep=None if keep is None else keep[b],
            )
            heads.append(o)
    o = torch.stack(heads).view(len(x), HEADS, n, d)
    return mixer.out_proj(o.transpose(1, 2).flatten(-2))

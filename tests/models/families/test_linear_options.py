"""Linear attention: softmax features of both axes, cross attention, the lra variant."""

import pytest
import torch

from lra.models.families.linear import FeatureChoice, LinearAttention, linear_attention
from lra.models.mixer import Layout, Unsupported, Variant
from tests.attention import builder
from tests.literal.features import efficient_attention
from tests.models.ops.linear.feature_forms import draw, holes

make = builder(LinearAttention)


def test_softmax_dims_neither_overflow_nor_vanish():
    q, k, v = (x.detach().float() for x in draw(50))
    q, k = 40 * q - 100, 40 * k + 100
    out = linear_attention(q, k, v, FeatureChoice.softmax_dims)
    wanted = efficient_attention(q.double(), k.double(), v.double())
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)


def test_softmax_dims_cannot_be_causal():
    with pytest.raises(Unsupported, match="feature_map=exp"):
        linear_attention(*draw(5), FeatureChoice.softmax_dims, causal=True)


def test_the_lra_variant_attends_to_padding():
    mixer, x = make(variant=Variant.lra), torch.randn(2, 24, 12, dtype=torch.float64)
    assert torch.equal(mixer(x, Layout(keep=holes(24))), mixer(x, Layout()))
    assert mixer.traits.supports == {"start"}
    assert not mixer.traits.row_stochastic

"""Linear attention: softmax features of both axes, the lra variant."""

import pytest
import torch

from lra.models.families.linear import FeatureChoice, LinearAttention, linear_attention
from lra.models.mixer import Layout, Unsupported, Variant
from tests.attention import builder
from tests.models.ops.linear.feature_forms import draw, holes

make = builder(LinearAttention)


def test_softmax_dims_cannot_be_causal():
    with pytest.raises(Unsupported, match="feature_map=exp"):
        linear_attention(*draw(5), FeatureChoice.softmax_dims, causal=True)


def test_the_lra_variant_attends_to_padding():
    mixer, x = make(variant=Variant.lra), torch.randn(2, 24, 12, dtype=torch.float64)
    assert torch.equal(mixer(x, Layout(keep=holes(24))), mixer(x, Layout()))
    assert mixer.traits.supports == {"start"}
    assert not mixer.traits.row_stochastic

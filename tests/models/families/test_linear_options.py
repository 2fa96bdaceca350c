"""Linear attention: softmax features of both axes, cross attention, the lra variant."""

import pytest
import torch

from lra.models.families.linear import Denominator, FeatureChoice, LinearAttention, linear_attention
from lra.models.mixer import Layout, Unsupported, Variant
from tests.attention import builder
from tests.literal.features import (
    FEATURE_MAPS,
    efficient_attention as shares,
    linear_attention as literal,
)
from tests.models.ops.linear.feature_forms import PADDED, compare, draw, holes, small_blocks

__all__ = ["small_blocks"]
elu1 = FEATURE_MAPS["elu1"]


make = builder(LinearAttention)


# softmax over the channels of queries and over the length of keys


@PADDED
@pytest.mark.parametrize("length", [9, 63])
@pytest.mark.usefixtures("small_blocks")
def test_softmax_dims_equal_the_literal_form(length, padded):
    q, k, v = draw(length)
    keep = holes(length) if padded else None
    compare(
        lambda: linear_attention(q, k, v, FeatureChoice.softmax_dims, keep=keep),
        lambda: shares(q, k, v, keep=keep),
        (q, k, v),
    )


def test_softmax_dims_neither_overflow_nor_vanish():
    q, k, v = (x.detach().float() for x in draw(50))
    q, k = 40 * q - 100, 40 * k + 100
    out = linear_attention(q, k, v, FeatureChoice.softmax_dims)
    wanted = shares(q.double(), k.double(), v.double())
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)


def test_softmax_dims_cannot_be_causal():
    with pytest.raises(Unsupported, match="feature_map=exp"):
        make(causal=True, feature_map=FeatureChoice.softmax_dims)
    with pytest.raises(Unsupported, match="feature_map=exp"):
        linear_attention(*draw(5), FeatureChoice.softmax_dims, causal=True)


@pytest.mark.parametrize("feature_map", [FeatureChoice.elu1, FeatureChoice.softmax_dims])
def test_the_mixer_attends_across(feature_map):
    mixer = make(feature_map=feature_map)
    generator = torch.Generator().manual_seed(2)
    x, source = (torch.randn(2, n, 12, generator=generator, dtype=torch.float64) for n in (7, 23))
    keep = holes(23)
    found = mixer.attend(x, Layout(), source, Layout(keep=keep))
    q = mixer.split(mixer.q_proj(x))
    k, v = (mixer.split(layer(source)) for layer in (mixer.k_proj, mixer.v_proj))
    if feature_map is FeatureChoice.softmax_dims:
        wanted = shares(q, k, v, keep=keep)
    else:
        wanted = literal(elu1(q), elu1(k), v, keep=keep)
    torch.testing.assert_close(found, mixer.merge(wanted), rtol=1e-11, atol=1e-12)


# the code of the Long Range Arena


def test_the_lra_variant_adds_an_epsilon_and_attends_to_padding():
    mixer = make(variant=Variant.lra)
    q, k, v = mixer.project(torch.randn(2, 24, 12, dtype=torch.float64), Layout())
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))

    def wanted():
        weights = elu1(q) @ elu1(k).mT
        return weights @ v / (weights.sum(-1, keepdim=True) + 1e-6)

    for keep in (None, holes(24)):
        compare(lambda keep=keep: mixer.core(q, k, v, Layout(keep=keep)), wanted, (q, k, v))
    assert (wanted() - literal(elu1(q), elu1(k), v)).abs().max() > 1e-9
    assert mixer.traits.supports == {"start"}
    assert not mixer.traits.row_stochastic


def test_the_lra_variant_is_neither_causal_nor_of_other_features():
    with pytest.raises(Unsupported, match="variant=faithful"):
        make(causal=True, variant=Variant.lra)
    with pytest.raises(ValueError, match="got sqr; leave it at elu1, or choose variant=faithful"):
        make(variant=Variant.lra, feature_map=FeatureChoice.sqr)


@PADDED
@pytest.mark.usefixtures("small_blocks")
def test_the_root_of_the_length_in_place_of_the_sum_of_weights(padded):
    mixer = make(denominator=Denominator.root_length)
    q, k, v = draw(25)
    keep = holes(25) if padded else None

    def written_out():
        weights = elu1(q) @ elu1(k).mT / 5
        return (weights if keep is None else weights * keep[:, None, None]) @ v

    compare(lambda: mixer.core(q, k, v, Layout(keep=keep)), written_out, (q, k, v))
    with pytest.raises(Unsupported, match="denominator=weights"):
        make(causal=True, denominator=Denominator.root_length)

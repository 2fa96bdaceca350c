"""Linear attention against the literal form, and what follows from being exact."""

import pytest
import torch

from lra.models.contract.counting import (
    ElementCounter,
)
from lra.models.families.linear import FEATURES, FeatureChoice, LinearAttention, linear_attention
from lra.models.mixer import Site
from lra.models.ops.linear import features as blocked
from lra.models.ops.linear.features import FeatureMaps
from tests.attention import DIRECTIONS, Calls
from tests.literal import features as reference
from tests.literal.features import FEATURE_MAPS
from tests.models.ops.linear.feature_forms import PADDED, attend, compare, draw, holes, small_blocks

__all__ = ["small_blocks"]
LITERAL = {FeatureChoice(name): phi for name, phi in FEATURE_MAPS.items()}
CHOICES = list(LITERAL)


def dense(q, k, v, feature_map, *, keep=None, causal=False):
    phi = LITERAL[feature_map]
    return reference.linear_attention(phi(q), phi(k), v, keep=keep, causal=causal)


def make(causal=False, **options) -> LinearAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LinearAttention(Site(width=12, heads=3, max_length=24, causal=causal), **options)


@DIRECTIONS
@pytest.mark.parametrize("feature_map", CHOICES)
@pytest.mark.parametrize("length", [1, 2, 63, 101])
@PADDED
@pytest.mark.usefixtures("small_blocks")
def test_outputs_and_gradients_equal_the_literal_form(feature_map, length, padded, causal):
    q, k, v = draw(length)
    keep = holes(length) if padded else None  # with rows that find nothing when causal
    compare(
        lambda: linear_attention(q, k, v, feature_map, keep=keep, causal=causal, chunk=8),
        lambda: dense(q, k, v, feature_map, keep=keep, causal=causal),
        (q, k, v),
    )


@pytest.mark.parametrize("feature_map", [FeatureChoice.elu1, FeatureChoice.exp])
@pytest.mark.parametrize("chunk", [1, 10, 64])
@pytest.mark.parametrize("rows", [1, 16])
def test_chunk_and_block_never_change_the_result(feature_map, chunk, rows, monkeypatch):
    monkeypatch.setattr(blocked, "CPU_BLOCK", 1)
    monkeypatch.setattr(blocked, "MINIMUM_ROWS", rows)
    q, k, v = draw(37)
    compare(
        lambda: linear_attention(q, k, v, feature_map, causal=True, chunk=chunk),
        lambda: dense(q, k, v, feature_map, causal=True),
        (q, k, v),
    )


def test_backward_twice_is_refused_not_wrong():
    q, k, v = draw(8)
    cotangent = torch.ones_like(v, requires_grad=True)
    (gradient,) = torch.autograd.grad(linear_attention(q, k, v), q, cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_keys_may_be_more_than_queries():
    q, (k, v) = draw(7)[0], draw(23, seed=1)[1:]
    compare(
        lambda: linear_attention(q, k, v),
        lambda: dense(q, k, v, FeatureChoice.elu1),
        (q, k, v),
    )


@DIRECTIONS
def test_order_of_axes_in_memory_does_not_matter(causal):
    x = torch.randn(2, 3, 29, 3, 5, dtype=torch.float64).requires_grad_()  # b 3 l h k
    q, k, v = (part.transpose(1, 2) for part in x.unbind(1))
    assert not q.is_contiguous()
    compare(
        lambda: linear_attention(q, k, v, causal=causal, chunk=8),
        lambda: dense(q, k, v, FeatureChoice.elu1, causal=causal),
        (x,),
    )


@DIRECTIONS
def test_result_joins_its_heads_without_a_copy(causal):
    q, k, v = (torch.randn(2, 29, 3, 5).transpose(1, 2) for _ in range(3))
    o = linear_attention(q, k, v, causal=causal)
    assert o.transpose(1, 2).flatten(-2)._base is not None


def test_a_chunk_holds_a_token():
    with pytest.raises(ValueError, match="got 0"):
        make(chunk=0)


@DIRECTIONS
@pytest.mark.parametrize("shift", [-100.0, 100.0])
def test_exponentials_neither_overflow_nor_vanish(causal, shift):
    q, k, v = (x.detach().float() for x in draw(50))
    q, k = 4 * q - shift, 4 * k + shift
    assert (k.exp() * q.exp()).isfinite().logical_not().any()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(*inputs, FeatureChoice.exp, causal=causal, chunk=16)
    wanted = dense(*(x.double() for x in inputs), FeatureChoice.exp, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    for gradient in torch.autograd.grad(out.square().sum(), inputs):
        assert gradient.isfinite().all()


def test_a_short_sequence_is_mixed_at_once_without_copies_or_zeros_to_add_to():
    called = []
    for length in (128, 700, 4096):
        q, k, v = (torch.randn(2, 4, length, 32) for _ in range(3))
        with Calls() as calls, ElementCounter() as elements:
            linear_attention(q, k, v)
        called.append(calls.names)
        # Four passes for each side, the numerator as product, view and mean, and its weights.
        assert elements.written < 12.7 * q.numel()
    assert called[0] == called[1] == called[2]
    assert not {"copy_", "clone", "cat", "new_zeros", "new_ones", "where"} & {*called[0]}
    assert len(called[0]) <= 20


def test_a_short_step_takes_as_many_calls_at_any_length_and_cuts_nothing():
    called = []
    for length in (128, 700):
        q, k, v = (torch.randn(2, 4, length, 32, requires_grad=True) for _ in range(3))
        with Calls() as calls:
            o = linear_attention(q, k, v)
            torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        called.append(calls.names)
    assert called[0] == called[1]
    # Two for the columns beside values and beside their gradients; no part is put together.
    assert called[0].count("copy_") <= 3
    assert "zeros_like" not in called[0]


@DIRECTIONS
def test_unnormalised_product_is_the_plain_numerator(causal):
    q, k, v = draw(19)
    phi = LITERAL[FeatureChoice.elu1]
    features = FEATURES[FeatureChoice.elu1]
    maps = FeatureMaps(features, features, 5, normalise=False)
    weights = phi(q) @ phi(k).mT
    compare(
        lambda: attend(q, k, v, maps, causal=causal, chunk=4),
        lambda: (weights.tril() if causal else weights) @ v,
        (q, k, v),
    )

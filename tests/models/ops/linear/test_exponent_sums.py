"""Exponential features of any size: the literal weighted mean, in both directions."""

import pytest
import torch

from lra.models.ops.linear import causal_product as causally, feature_product as wholly
from lra.models.ops.linear.exponent_sums import Exponential, faint
from lra.models.ops.linear.features import FeatureMaps
from lra.models.ops.linear.random_features import Kernel, draw_projection, performer_maps
from tests.attention import DIRECTIONS
from tests.literal.features import attention_from_exponents
from tests.models.ops.linear.feature_forms import PADDED, WIDTH, attend, compare, draw, holes

FEATURES = 7
SIZES = pytest.mark.parametrize("size", [10, 30])
MAPS = pytest.mark.parametrize("kernel", [Kernel.softmax, Kernel.hyperbolic, Kernel.exp, "plain"])


def maps_of(kernel, dtype=torch.float64) -> FeatureMaps:
    if kernel == "plain":
        return FeatureMaps(Exponential(), Exponential(), WIDTH)
    projection = draw_projection(FEATURES, WIDTH, torch.Generator().manual_seed(4))
    return performer_maps(projection.to(dtype), kernel, feature_epsilon=1e-3)


def literal(q, k, v, maps, *, causal, keep=None):
    query, key = maps.exponentials
    exponents = query.exponents(q), key.exponents(k)
    return attention_from_exponents(*exponents, v, causal=causal, keep=keep)


@pytest.fixture
def always(monkeypatch):
    """Take the exact sums for every call."""
    for module in (wholly, causally):
        monkeypatch.setattr(module, "faint", lambda *_: True)


@pytest.fixture
def never(monkeypatch):
    """Refuse to take the exact sums."""
    for name in ("mean_of_all", "mean_of_past"):
        for module in (wholly, causally):
            monkeypatch.delattr(module, name, raising=False)


@DIRECTIONS
@PADDED
@MAPS
@pytest.mark.parametrize("length", [1, 63, 150])
@pytest.mark.usefixtures("always")
def test_the_exact_sums_are_the_literal_mean(length, kernel, padded, causal):
    q, k, v = draw(length)
    maps, keep = maps_of(kernel), holes(length) if padded else None
    compare(
        lambda: attend(q, k, v, maps, causal=causal, keep=keep),
        lambda: literal(q, k, v, maps, causal=causal, keep=keep),
        [q, k, v],
    )


@DIRECTIONS
@PADDED
@MAPS
@SIZES
def test_long_vectors_in_single_precision(size, kernel, padded, causal):
    """To the rounding of the exponents, whose size is that of a product of two vectors."""
    q, k, v = (x.detach() * size for x in draw(90))
    v = v / size
    keep = holes(90) if padded else None
    wide = [x.requires_grad_() for x in (q, k, v)]
    narrow = [x.detach().float().requires_grad_() for x in wide]
    query, key = maps_of(kernel).exponentials
    largest = max(side.exponents(x).abs().max().item() for side, x in ((query, q), (key, k)))
    wanted = literal(*wide, maps_of(kernel), causal=causal, keep=keep)
    found = attend(*narrow, maps_of(kernel, torch.float32), causal=causal, keep=keep)
    error = 2e-7 * largest
    assert (found - wanted).abs().max() < 4 * error
    cotangent = torch.randn(v.shape, generator=torch.Generator().manual_seed(9)).double()
    for a, b in zip(
        torch.autograd.grad(found, narrow, cotangent.float()),
        torch.autograd.grad(wanted, wide, cotangent),
        strict=True,
    ):
        assert (a - b).abs().max() < 4 * error * b.abs().max()


@DIRECTIONS
@PADDED
@pytest.mark.usefixtures("never")
def test_vectors_of_ordinary_size_take_the_fast_sums(padded, causal):
    """A row whose keys are all padding is no reason either."""
    q, k, v = draw(150, dtype=torch.float32)
    keep = holes(150) if padded else None
    for kernel in (Kernel.softmax, Kernel.exp, "plain"):
        attend(q, k, v, maps_of(kernel, torch.float32), causal=causal, keep=keep)


def test_what_counts_as_faint():
    inverse = torch.ones(2, 3, 4)
    assert not faint(inverse, None)
    for value in (0.0, 1e30):
        inverse[1, 0, 2] = value
        assert faint(inverse, None)
        seen = torch.ones(2, 4, dtype=torch.bool)
        assert faint(inverse, seen)
        seen[1, 2] = False
        assert not faint(inverse, seen)
    assert not faint(inverse.to("meta"), None)

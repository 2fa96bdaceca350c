"""The product by levels against its definition pair by pair.

Each with and without keys that correct what was written.
"""

import pytest
from torch.nn import functional as F

from lra.models.ops.gated.log_linear import level_count, log_linear_product
from tests.attention import compare, drawn
from tests.literal import gated as reference

ROWS, HEADS, KEYS, VALUES = 2, 2, 3, 4
BOTH = pytest.mark.parametrize("delta", [False, True], ids=["sum", "delta"])


def inputs(length, number, strength=1.0, *, delta=False):
    """Return q, k, v, g and weights of levels, leaves in float64; with `delta` w behind them."""
    q, k = (drawn(ROWS, HEADS, length, KEYS, seed=seed) for seed in (1, 2))
    if delta:
        k = F.normalize(k, dim=-1)
    more = [2 * drawn(ROWS, HEADS, length, 1, seed=6).sigmoid() * k] if delta else []
    v = drawn(ROWS, HEADS, length, VALUES, seed=3)
    g = -strength * drawn(ROWS, HEADS, length, seed=4).abs()
    weights = F.softplus(drawn(ROWS, HEADS, length, number, seed=5))
    return [each.requires_grad_() for each in (q, k, v, g, weights, *more)]


def writes(given):
    """Return w by name, where it is given."""
    return {"w": given[5]} if len(given) == 6 else {}


def product(given, **options):
    return log_linear_product(*given[:5], **writes(given), **options)


def defined(given):
    form = reference.log_linear_product if len(given) == 5 else reference.log_linear_delta_product
    return form(*given[:5], **writes(given))


@BOTH
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 33])
def test_the_tree_is_its_definition(length, delta):
    given = inputs(length, level_count(length), delta=delta)
    wanted = defined(given)
    for chunk in (1, 3, 8, 64):
        compare(product(given, chunk=chunk), wanted, given, atol=1e-10)


@pytest.mark.parametrize(("tokens", "wanted"), [(1, 2), (2, 2), (3, 3), (4, 3), (5, 4), (4096, 13)])
def test_levels_are_the_digits_of_the_largest_distance(tokens, wanted):
    assert level_count(tokens) == wanted

"""The product by levels, and the same from state to state, against its definition pair by pair.

Each with and without keys that correct what was written.
"""

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.gated.log_linear import level_count, log_linear_product, log_linear_steps
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


def empty(number):
    state = torch.zeros(ROWS, HEADS, number - 1, KEYS, VALUES, dtype=torch.float64)
    return {"state": state, "place": torch.zeros(ROWS, dtype=torch.int64)}


def stepped(given, cuts, chunk=4, left=None):
    """Return what is read piece by piece, and what is left behind the last."""
    left, outputs = left or empty(given[4].shape[3]), []
    for piece in zip(*(each.split(cuts, 2) for each in given), strict=True):
        o, state, place = log_linear_steps(*piece[:5], **writes(piece), **left, chunk=chunk)
        left = {"state": state, "place": place}
        outputs.append(o)
    return torch.cat(outputs, 2), left


@BOTH
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 33])
def test_the_tree_is_its_definition(length, delta):
    given = inputs(length, level_count(length), delta=delta)
    wanted = defined(given)
    for chunk in (1, 3, 8, 64):
        compare(product(given, chunk=chunk), wanted, given, atol=1e-10)


@BOTH
def test_rows_continue_from_places_of_their_own(delta):
    given = inputs(29, 6, delta=delta)
    _, first = stepped([each[:, :, :5] for each in given], [5])
    _, second = stepped([each[:, :, :12] for each in given], [12])
    left = {name: torch.stack((first[name][0], second[name][1])) for name in first}
    later = [torch.stack((each[0, :, 5:22], each[1, :, 12:])) for each in given]
    o, _ = stepped(later, [17], left=left)
    wanted = defined(given)
    torch.testing.assert_close(o[0], wanted[0, :, 5:22], atol=1e-10, rtol=0)
    torch.testing.assert_close(o[1], wanted[1, :, 12:], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("tokens", "wanted"), [(1, 2), (2, 2), (3, 3), (4, 3), (5, 4), (4096, 13)])
def test_levels_are_the_digits_of_the_largest_distance(tokens, wanted):
    assert level_count(tokens) == wanted

"""The product by levels, and the same from state to state, against its definition pair by pair."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.ops.gated import reference
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.log_linear import level_count, log_linear_product, log_linear_steps
from tests.attention import compare, drawn

ROWS, HEADS, KEYS, VALUES = 2, 2, 3, 4


def inputs(length, number, strength=1.0):
    """Return q, k, v, g and weights of levels, leaves in float64."""
    q, k = (drawn(ROWS, HEADS, length, KEYS, seed=seed) for seed in (1, 2))
    v = drawn(ROWS, HEADS, length, VALUES, seed=3)
    g = -strength * drawn(ROWS, HEADS, length, seed=4).abs()
    weights = F.softplus(drawn(ROWS, HEADS, length, number, seed=5))
    return [each.requires_grad_() for each in (q, k, v, g, weights)]


def empty(number):
    state = torch.zeros(ROWS, HEADS, number - 1, KEYS, VALUES, dtype=torch.float64)
    return {"state": state, "place": torch.zeros(ROWS, dtype=torch.int64)}


def stepped(given, cuts, chunk=4, keep=None):
    """Return what is read piece by piece, and what is left behind the last."""
    left, outputs = empty(given[4].shape[3]), []
    pieces = [each.split(cuts, 2) for each in given]
    kept = [None] * len(cuts) if keep is None else keep.split(cuts, 1)
    for *piece, mask in zip(*pieces, kept, strict=True):
        o, state, place = log_linear_steps(*piece, **left, chunk=chunk, keep=mask)
        left = {"state": state, "place": place}
        outputs.append(o)
    return torch.cat(outputs, 2), left


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 29, 33])
@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
def test_the_tree_is_its_definition(length, chunk):
    given = inputs(length, level_count(length))
    compare(
        log_linear_product(*given, chunk=chunk),
        reference.log_linear_product(*given),
        given,
        atol=1e-10,
    )


@pytest.mark.parametrize("strength", [0.0, 40.0])
@pytest.mark.parametrize("form", [log_linear_product, lambda *given: stepped(given, [29])[0]])
def test_strong_and_missing_decays(form, strength):
    given = inputs(29, 6, strength)
    compare(form(*given), reference.log_linear_product(*given), given, atol=1e-10)


@pytest.mark.parametrize("cuts", [[29], [1] * 29, [5, 1, 17, 6], [8, 8, 8, 5], [3, 26]])
@pytest.mark.parametrize("number", [2, 4, 6])
def test_any_cut_is_the_whole(cuts, number):
    """With too few levels for the length, all that is older counts as the last."""
    given = inputs(29, number)
    wanted = reference.log_linear_product(*given)
    compare(stepped(given, cuts)[0], wanted, given, atol=1e-10)
    compare(log_linear_product(*given, chunk=4), wanted, given, atol=1e-10)


def test_weights_of_one_are_the_product_without_levels():
    q, k, v, g, weights = inputs(29, 6)
    wanted, last = decayed_product(q, k, v, g, chunk=8)
    ones = torch.ones_like(weights)
    torch.testing.assert_close(log_linear_product(q, k, v, g, ones, chunk=8), wanted)
    seen, left = stepped((q, k, v, g, ones), [11, 18])
    torch.testing.assert_close(seen, wanted)
    torch.testing.assert_close(left["state"].sum(2), last)


def test_padding_behind_leaves_states_as_they_were():
    given = inputs(29, 6)
    keep = torch.arange(29) < torch.tensor([[29], [13]])
    seen, left = stepped(given, [10, 19], keep=keep)
    whole = log_linear_product(*given, chunk=8, keep=keep)
    short = [each[1:, :, :13] for each in given]
    wanted = reference.log_linear_product(*short)
    for o in (seen, whole):
        torch.testing.assert_close(o[1:, :, :13], wanted, atol=1e-10, rtol=0)
    _, alone = stepped([each[:, :, :13] for each in given], [13])
    torch.testing.assert_close(left["state"][1], alone["state"][1], atol=1e-10, rtol=0)
    assert left["place"].tolist() == [29, 13]


def test_rows_continue_from_places_of_their_own():
    given = inputs(29, 6)
    _, first = stepped([each[:, :, :5] for each in given], [5])
    _, second = stepped([each[:, :, :12] for each in given], [12])
    left = {name: torch.stack((first[name][0], second[name][1])) for name in first}
    later = [torch.stack((each[0, :, 5:22], each[1, :, 12:])) for each in given]
    o, *_ = log_linear_steps(*later, **left, chunk=4)
    wanted = reference.log_linear_product(*given)
    torch.testing.assert_close(o[0], wanted[0, :, 5:22], atol=1e-10, rtol=0)
    torch.testing.assert_close(o[1], wanted[1, :, 12:], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("tokens", "wanted"), [(1, 2), (2, 2), (3, 3), (4, 3), (5, 4), (4096, 13)])
def test_levels_are_the_digits_of_the_largest_distance(tokens, wanted):
    assert level_count(tokens) == wanted

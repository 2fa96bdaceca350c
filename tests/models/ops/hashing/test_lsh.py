"""Attention among tokens that hash alike, against the paper's form and exact attention."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.ops.hashing import lsh_lists
from lra.models.ops.hashing.lsh import Rules, lsh_attention
from lra.models.ops.hashing.lsh_lists import hash_buckets
from tests import attention
from tests.attention import DIRECTIONS, drawn, holes
from tests.models.ops.hashing.lsh_forms import (
    drawn_buckets,
    exact,
    literal,
    logits,
    meetings,
)

SLOPES = torch.tensor([0.5, 0.0625])


def tokens(length: int, *, batch: int = 2, width: int = 3) -> list[Tensor]:
    return [drawn(batch, 2, length, width, seed=s).requires_grad_() for s in range(2)]


def compare(length: int, rules: Rules, *, rounds: int, count: int = 4, **facts) -> None:
    u, v = tokens(length)
    buckets = drawn_buckets(2, 2, rounds, length, count=count)
    seen = lsh_attention(u, v, buckets, rules, **facts)
    attention.compare(seen, literal(u, v, buckets, rules, **facts), [u, v])


@DIRECTIONS
@pytest.mark.parametrize("joint", [False, True], ids=["per_round", "joint"])
@pytest.mark.parametrize("sides", [(1, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize("length", [1, 8, 13])
def test_equals_the_paper(length: int, sides: tuple[int, int], joint: bool, causal: bool) -> None:
    rules = Rules(4, *sides, causal=causal, scale=0.7, joint=joint)
    compare(length, rules, rounds=3)
    compare(length, rules, rounds=3, keep=holes(length, end=2), slopes=SLOPES)


@DIRECTIONS
@pytest.mark.parametrize("joint", [False, True], ids=["per_round", "joint"])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("duplicates", [False, True])
def test_what_buckets_and_duplicates_change(
    duplicates: bool, across: bool, joint: bool, causal: bool
) -> None:
    rules = Rules(4, 1, 1, causal=causal, joint=joint, across_buckets=across, duplicates=duplicates)
    compare(13, rules, rounds=3, count=3)
    compare(13, rules, rounds=2, count=3, keep=holes(13, end=2))


@pytest.mark.parametrize("rounds", [1, 2])
def test_keys_as_they_are_and_self_in_sight(rounds: int) -> None:
    rules = Rules(4, unit_keys=False, exclude_self=False, scale=2.0)
    compare(13, rules, rounds=rounds)
    compare(13, rules, rounds=rounds, keep=holes(13, end=2))


@DIRECTIONS
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("joint", [False, True], ids=["per_round", "joint"])
def test_one_bucket_and_one_chunk_is_exact_attention(
    joint: bool, rounds: int, causal: bool
) -> None:
    u, v = tokens(12)
    one_bucket = torch.zeros(2, 2, rounds, 12, dtype=torch.int64)
    rules = Rules(16, causal=causal, joint=joint)
    attention.compare(lsh_attention(u, v, one_bucket, rules), exact(u, v, rules), [u, v])
    keep = holes(12, end=2)
    attention.compare(
        lsh_attention(u, v, one_bucket, rules, keep=keep), exact(u, v, rules, keep), [u, v]
    )


def weights(u: Tensor, buckets: Tensor, rules: Rules) -> Tensor:
    """The implied matrix: what values of one-hot vectors give."""
    identity = torch.eye(u.shape[2], dtype=torch.float64).expand(*u.shape[:3], -1)
    return lsh_attention(u, identity, buckets, rules)


@DIRECTIONS
def test_without_duplicates_it_is_one_softmax_over_all_that_is_met(causal: bool) -> None:
    u = drawn(1, 1, 29, 4)
    buckets = drawn_buckets(1, 1, 4, 29, count=6)
    rules = Rules(5, causal=causal, duplicates=False)
    implied = weights(u, buckets, rules)[0, 0]
    torch.testing.assert_close(implied.sum(-1), torch.ones(29, dtype=torch.float64))
    union = meetings(buckets[0, 0].tolist(), list(range(29)), rules).sum(0) > 0
    wanted = logits(u[0, 0], rules).masked_fill(~union, -1e30).softmax(-1)
    torch.testing.assert_close(implied, wanted, atol=1e-12, rtol=0)
    repeated = weights(u, buckets, rules._replace(duplicates=True))[0, 0]
    torch.testing.assert_close(repeated.sum(-1), torch.ones(29, dtype=torch.float64))
    assert not torch.allclose(repeated, wanted)


def test_a_token_sees_itself_only_when_it_sees_nothing_else() -> None:
    u, buckets = drawn(1, 1, 9, 4), torch.zeros(1, 1, 2, 9, dtype=torch.int64)
    seen = weights(u, buckets, Rules(4)).diagonal(dim1=-2, dim2=-1)
    assert (seen == 0).all()
    first = weights(u, buckets, Rules(4, causal=True))[0, 0, 0]
    torch.testing.assert_close(first, torch.eye(9, dtype=torch.float64)[0])


@pytest.mark.parametrize("joint", [False, True], ids=["per_round", "joint"])
def test_with_its_bucket_fixed_a_later_token_changes_nothing(joint: bool) -> None:
    u, v = (x.detach() for x in tokens(23))
    buckets = drawn_buckets(2, 2, 3, 23, count=5)
    rules = Rules(4, causal=True, joint=joint)
    before = lsh_attention(u, v, buckets, rules)
    u[:, :, -1], v[:, :, -1] = 6 * drawn(2, 2, 3, seed=8), 6 * drawn(2, 2, 3, seed=9)
    after = lsh_attention(u, v, buckets, rules)
    assert torch.equal(after[:, :, :-1], before[:, :, :-1])
    assert not torch.allclose(after[:, :, -1], before[:, :, -1])
    buckets[..., -1] = 0  # moves the chunks of all others
    moved = lsh_attention(u, v, buckets, rules)
    assert not torch.allclose(moved[:, :, :-1], before[:, :, :-1])


def test_a_key_of_almost_no_length_has_a_small_gradient() -> None:
    u, v = tokens(8)
    with torch.no_grad():
        u[:, :, 3] = 0
    o = lsh_attention(u, v, torch.zeros(2, 2, 1, 8, dtype=torch.int64), Rules(8))
    gradient = torch.autograd.grad(o.sum(), u)[0]
    assert gradient.isfinite().all()
    assert gradient.abs().max() < 1e4


def test_dropout_keeps_the_mean() -> None:
    u = drawn(1, 1, 64, 4)
    identity = torch.eye(64, dtype=torch.float64)[None, None]
    buckets, rules = torch.zeros(1, 1, 1, 64, dtype=torch.int64), Rules(32)
    whole = lsh_attention(u, identity, buckets, rules)
    torch.manual_seed(0)
    dropped = lsh_attention(u, identity, buckets, rules, dropout=0.25)
    alive = dropped != 0
    assert 0.72 < alive.sum() / (whole > 0).sum() < 0.78
    torch.testing.assert_close(dropped[alive], (whole / 0.75)[alive])


@DIRECTIONS
@pytest.mark.parametrize("elements", [1, 500, 1 << 20])
def test_the_size_of_a_pass_changes_nothing(elements: int, causal: bool, monkeypatch) -> None:
    monkeypatch.setitem(lsh_lists.PASS_ELEMENTS, "cpu", elements)
    compare(29, Rules(4, causal=causal, duplicates=False), rounds=2, slopes=SLOPES)


@DIRECTIONS
def test_half_precision_is_summed_in_float32(causal: bool) -> None:
    u, v = (x.detach().bfloat16() for x in tokens(50))
    buckets, rules = drawn_buckets(2, 2, 2, 50, count=4), Rules(8, causal=causal)
    wanted = lsh_attention(u.double(), v.double(), buckets, rules)
    leaves = [x.requires_grad_() for x in (u, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = lsh_attention(*leaves, buckets, rules)
    gradients = torch.autograd.grad(o.float().square().sum(), leaves)
    assert {x.dtype for x in (o, *gradients)} == {torch.bfloat16}
    # one rounding of the result, half a unit in its last place, is all that may be lost
    torch.testing.assert_close(o.double(), wanted, atol=1e-5, rtol=2**-8)


@pytest.mark.parametrize("factors", [[2], [8], [4, 6], [2, 4, 8]])
def test_buckets_are_the_nearest_of_the_random_directions(factors: list[int]) -> None:
    u, turns = drawn(2, 3, 20, 5), drawn(2, 3, 5, sum(factors) // 2, seed=1)
    seen = hash_buckets(u, turns, factors)
    for b, h, r, i in torch.cartesian_prod(*map(torch.arange, seen.shape)).tolist():
        wanted, stride, first = 0, 1, 0
        for factor in factors:
            part = turns[r, h, :, first : first + factor // 2]
            directions = torch.cat((part, -part), 1)
            wanted += stride * int((u[b, h, i] @ directions).argmax())
            stride, first = stride * factor, first + factor // 2
        assert seen[b, h, r, i] == wanted
    assert 0 <= seen.min() <= seen.max() < math.prod(factors)
    assert torch.equal(hash_buckets(7 * u, turns, factors), seen)  # angles alone count

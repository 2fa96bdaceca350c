"""Attention among tokens that hash alike, against the paper's form and exact attention."""

import pytest
import torch
from torch import Tensor

from lra.models.ops.hashing.lsh import Rules, lsh_attention
from tests.attention import DIRECTIONS, drawn


def drawn_buckets(*shape: int, count: int, seed: int = 0) -> Tensor:
    return torch.randint(count, shape, generator=torch.Generator().manual_seed(seed))


def tokens(length: int, *, batch: int = 2, width: int = 3) -> list[Tensor]:
    return [drawn(batch, 2, length, width, seed=s).requires_grad_() for s in range(2)]


def weights(u: Tensor, buckets: Tensor, rules: Rules) -> Tensor:
    """The implied matrix: what values of one-hot vectors give."""
    identity = torch.eye(u.shape[2], dtype=torch.float64).expand(*u.shape[:3], -1)
    return lsh_attention(u, identity, buckets, rules)


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

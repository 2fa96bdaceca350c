"""YOSO against its literal forms: both modes, both gradients, tables, chunks and padding."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.yoso import Rule, Yoso, YosoEstimator, yoso_attention
from lra.models.mixer import Site, Unsupported
from lra.models.ops.hashing import collisions
from lra.models.ops.hashing.collision_chance import Gradient
from lra.models.ops.hashing.collisions import (
    Sides,
    carried,
    collected,
    draw_planes,
    hash_codes,
    paired,
)
from tests import attention
from tests.attention import builder, drawn
from tests.literal.yoso import collision_chance as chance, cosines

compare = partial(attention.compare, atol=1e-12, rtol=1e-11, looser=10)


def planes(hashes: int, tau: int, width: int = 4, seed: int = 0) -> Tensor:
    return draw_planes(3, width, hashes * tau, torch.Generator().manual_seed(seed))


def test_more_hashes_come_nearer_to_the_expectation_as_their_root():
    q, k, v = (drawn(1, 3, 64, 8, seed=s) for s in range(3))
    wanted = chance(cosines(q, k), 4)
    identity = torch.eye(64, dtype=torch.float64).expand(1, 3, 64, 64)
    errors = []
    for hashes in (8, 128, 2048):
        codes = [hash_codes(x.flatten(0, 1), planes(hashes, 4, 8, seed=1), 4) for x in (q, k)]
        found = collected(*codes, identity.flatten(0, 1), 16) / hashes
        errors.append((found - wanted[0]).norm() / wanted.norm())
    # Sixteen times the hashes, a quarter of the error.
    assert 3 < errors[0] / errors[1] < 5.3
    assert 3 < errors[1] / errors[2] < 5.3
    directions = planes(2048, 4, 8, seed=1)
    hashed, expected = (yoso_attention(q, k, v, Rule(4, x)) for x in (directions, None))
    assert F.cosine_similarity(hashed, expected, dim=-1).mean() > 0.97


def test_codes_are_bits_of_signs():
    x, directions = drawn(6, 50, 4), planes(4, 7)
    codes = hash_codes(x, directions, 7)
    assert codes.shape == (6, 4, 50)
    assert 0 <= codes.min() < codes.max() < 2**7
    for row, hash_, token in ((0, 0, 0), (5, 3, 49), (2, 1, 17)):
        signs = (x[row, token] @ directions[row % 3].double())[7 * hash_ : 7 * (hash_ + 1)] > 0
        assert codes[row, hash_, token] == sum(2**bit for bit in range(7) if signs[bit])


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("codes", [1, 2, 4, 40])
def test_sums_over_pairs_of_equal_codes(chunk, codes, monkeypatch):
    monkeypatch.setattr(collisions, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(codes)
    targets, sources = (
        torch.randint(codes, (2, 3, n), generator=generator, dtype=torch.int32) for n in (37, 22)
    )
    a, x, b, y = drawn(2, 37, 4), drawn(2, 37, 3), drawn(2, 22, 4), drawn(2, 22, 3)
    equal = (targets[..., None] == sources[..., None, :]).double().sum(1)
    for_queries, for_keys = paired(Sides(a, x), Sides(b, y), targets, sources)
    weights = equal * (a @ b.mT)
    torch.testing.assert_close(for_queries, weights @ y, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(for_keys, weights.mT @ x, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(collected(targets, sources, y, codes), equal @ y)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 8, 13])
def test_carried_equals_a_loop(length, back):
    x = drawn(2, length, 3, 2)
    goes_on = torch.rand(2, length, 1, 1, generator=torch.Generator().manual_seed(0)) > 0.3
    wanted, last = torch.zeros_like(x), torch.zeros(2, 3, 2, dtype=x.dtype)
    for t in reversed(range(length)) if back else range(length):
        last = x[:, t] + goes_on[:, t] * last
        wanted[:, t] = last
    torch.testing.assert_close(carried(x.clone(), goes_on, back=back), wanted)


def test_equal_vectors_in_single_precision_give_no_nan():
    x = drawn(1, 3, 200, 5).float().requires_grad_()
    unit = F.normalize(x, dim=-1)
    assert (unit.square().sum(-1) > 1).any()
    for gradient in Gradient:
        out = yoso_attention(x, x, x, Rule(8, gradient=gradient))
        assert out.isfinite().all()
        assert torch.autograd.grad(out.square().sum(), x)[0].isfinite().all()


def test_a_query_whose_codes_meet_no_key_is_zero():
    q = drawn(1, 3, 4, 4)
    keys = -q.mean(2, keepdim=True).expand_as(q)
    inputs = [x.clone().requires_grad_() for x in (keys.neg(), keys, q)]
    out = yoso_attention(*inputs, Rule(2, planes(3, 2)))
    assert not out.any()
    assert not any(x.any() for x in torch.autograd.grad(out.sum(), inputs))


built = builder(Yoso)


@pytest.mark.parametrize(("length", "tau"), [(512, 9), (1024, 10), (2000, 11), (4000, 12)])
def test_tau_follows_the_length(length, tau):
    mixer = built(max_length=length, hashes=2)
    assert mixer.core.tau == tau
    assert mixer.core.planes.shape == (3, 4, 2 * tau)


def test_an_expectation_has_no_planes():
    plain = built(mode=YosoEstimator.expectation)
    assert not [*plain.buffers()]
    plain.after_step(3, torch.Generator())


def test_it_is_not_causal():
    with pytest.raises(Unsupported, match="no causal form"):
        Yoso(Site(width=12, heads=3, max_length=64, causal=True))

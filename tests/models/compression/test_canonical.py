"""The decomposition through the heads against the tensor itself, in loops over its terms."""

from itertools import pairwise

import pytest
import torch

from lra.models.compression.canonical import CanonicalFactors, decompose_heads


def heads_of(heads=4, width=3, d=10, s=11, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return (
        torch.randn(heads, width, d, generator=draw, dtype=torch.float64),
        torch.randn(heads, width, s, generator=draw, dtype=torch.float64),
    )


def tensor_of(q, k):
    """W[q, i, k], formed."""
    return torch.stack([q[i].T @ k[i] for i in range(len(q))], dim=1)


def rebuilt(found):
    return torch.einsum("qr,ir,kr->qik", found.queries, found.mixing, found.keys)


def literal_sweep(w, a, m, c):
    """One sweep by unfoldings and Khatri-Rao products, as in Kolda and Bader."""

    def khatri_rao(x, y):
        return torch.stack([torch.kron(x[:, r], y[:, r]) for r in range(x.shape[1])], dim=1)

    d, h, s = w.shape
    a = w.reshape(d, -1) @ torch.linalg.pinv(khatri_rao(m, c)).T
    m = w.permute(1, 0, 2).reshape(h, -1) @ torch.linalg.pinv(khatri_rao(a, c)).T
    c = w.permute(2, 0, 1).reshape(s, -1) @ torch.linalg.pinv(khatri_rao(a, m)).T
    return a, m, c


@pytest.mark.parametrize("rank", [2, 7])
def test_sweeps_are_those_of_the_literal_form(rank):
    q, k = heads_of()
    w = tensor_of(q, k)
    draw = torch.Generator().manual_seed(1)
    a, m, c = (torch.randn(n, rank, generator=draw, dtype=torch.float64) for n in (10, 4, 11))
    start = CanonicalFactors(a, m, c, ())
    found = decompose_heads(q, k, rank, sweeps=5, tolerance=0.0, start=start)
    for sweep in range(1, 6):
        a, m, c = literal_sweep(w, a, m, c)
        literal = float((w - torch.einsum("qr,ir,kr->qik", a, m, c)).norm() / w.norm())
        assert found.errors[sweep] == pytest.approx(literal, rel=1e-6)
    torch.testing.assert_close(
        rebuilt(found), torch.einsum("qr,ir,kr->qik", a, m, c), rtol=1e-5, atol=1e-6
    )
    assert torch.allclose(found.queries.norm(dim=0), torch.ones(rank, dtype=torch.float64))


def test_full_rank_is_the_tensor_and_errors_fall_with_sweeps_and_rank():
    q, k = heads_of(d=16, s=16)
    w, last = tensor_of(q, k), 1.1
    for rank in (1, 3, 6, 9, 12):
        found = decompose_heads(q, k, rank, sweeps=40)
        apart = float((rebuilt(found) - w).norm() / w.norm())
        assert found.errors[-1] == pytest.approx(apart, abs=1e-7)
        for before, after in pairwise(found.errors):
            assert after <= before + 1e-9
        assert found.errors[-1] < last
        last = found.errors[-1]
    assert last < 1e-7
    assert len(found.errors) == 1  # no sweep is needed


def test_a_planted_tensor_is_found():
    draw = torch.Generator().manual_seed(3)
    heads, width, rank, d = 4, 6, 5, 24
    a, c = (torch.randn(d, rank, generator=draw, dtype=torch.float64) for _ in range(2))
    m = torch.randn(heads, rank, generator=draw, dtype=torch.float64)
    # width 6 holds every head's matrix, which has rank 5
    q = torch.zeros(heads, width, d, dtype=torch.float64)
    k = torch.zeros(heads, width, d, dtype=torch.float64)
    for head in range(heads):
        q[head, :rank], k[head, :rank] = (a * m[head]).T, c.T
    found = decompose_heads(q, k, rank + 1, sweeps=300, tolerance=0.0)
    assert found.errors[-1] < 3e-3


def test_ranks_that_are_none_are_refused():
    q, k = heads_of()
    for rank in (0, 13):
        with pytest.raises(ValueError, match=r"from 1 to 12 .* the largest rank is exact.: got"):
            decompose_heads(q, k, rank)
    found = decompose_heads(torch.zeros_like(q), k, 2)
    assert float(rebuilt(found).abs().max()) == 0.0

"""Attention among tokens that hash alike, against loops and against exact attention."""

import pytest
import torch

from lsh_forms import drawn, drawn_buckets, exact, literal
from models.families.lsh import Rules, lsh_attention

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])

def compare(length, rules, *, rounds=2, keep=None, slopes=None, count=4):
    u, v = (drawn(2, 2, length, 3, seed=s).requires_grad_() for s in range(2))
    buckets = drawn_buckets(2, 2, rounds, length, count=count)
    facts = {"keep": keep, "slopes": slopes}
    seen = lsh_attention(u, v, buckets, rules, **facts)
    wanted = literal(u, v, buckets, rules, **facts)
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    g = drawn(*seen.shape, seed=7)
    for one, other in zip(torch.autograd.grad(seen, (u, v), g), torch.autograd.grad(wanted, (u, v), g), strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)

@DIRECTIONS
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("length", [1, 3, 8, 13])
@pytest.mark.parametrize("sides", [(1, 0), (0, 0), (1, 1), (2, 1), (0,2)])
@pytest.mark.parametrize("across", [False, True])
@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_lit(length, joint, sides, across, duplicates, causal, padded):
    keep = None
    if padded:
        keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) < 0.6
        keep[1, 2:] = False
    rules = Rules(4, *sides, causal=causal, scale=0.7, joint=joint, across_buckets=across, duplicates=duplicates)
    compare(length, rules, keep=keep, slopes=torch.tensor([0.5, 0.0625]), rounds=3)

"""Both patterns against dense masks, their union against merged sums, reach, LRA's mask."""

from functools import partial

import pytest
import torch
from torch import Tensor

from lra.models.families.sparse_transformer import HeadUse, SparseTransformer
from lra.models.mixer import Layout, Variant
from lra.models.ops.sparse.strided_and_fixed import SparsePattern
from tests import attention
from tests.attention import DIRECTIONS, builder
from tests.literal.sparse_transformer import far_pairs as far, near_pairs as near

PATTERNS = pytest.mark.parametrize("pattern", list(SparsePattern))


heads = partial(attention.heads, number=4)


def built(**given) -> SparseTransformer:
    fixed = given.get("pattern") is not SparsePattern.strided  # which has no summary
    usual = builder(SparseTransformer, width=16, heads=4, stride=6, summary=2 if fixed else None)
    return usual(**(given if fixed else given | {"summary": None}))


def weights_of(mixer: SparseTransformer, length: int) -> Tensor:
    """The matrix of weights of every head, by values of an identity."""
    count = mixer.heads
    q, k, _ = heads(length, width=length, number=count)
    identity = torch.eye(length, dtype=torch.float64).expand(2, count, length, length)
    return mixer.core(q, k, identity, Layout())


@PATTERNS
@DIRECTIONS
def test_two_hops_reach_everything_that_may_be_seen(pattern, causal):
    first, second = (
        weights_of(
            built(pattern=pattern, head_use=HeadUse.interleave, layer=r, depth=2, causal=causal), 40
        )
        for r in (0, 1)
    )
    near_hop, far_hop = first[0, 0] > 0, second[0, 0] > 0
    stays = torch.eye(40, dtype=torch.bool)  # the residual connection
    assert torch.equal(near_hop | stays, near_hop)
    reached = ((far_hop | stays).double() @ near_hop.double()) > 0
    everything = torch.ones(40, 40, dtype=torch.bool)
    assert torch.equal(reached, everything.tril() if causal else everything)
    assert not near_hop.equal(reached)
    assert not far_hop.equal(reached)


def test_the_mask_of_the_lra_code_has_8400_entries():
    mixer = built(variant=Variant.lra, stride=None, summary=None, max_length=200, heads=1, width=8)
    seen = weights_of(mixer, 200)[0, 0] > 0
    assert seen.sum() == 8400
    wanted = near(200, SparsePattern.fixed, 50, causal=True) | far(
        200, SparsePattern.fixed, 50, 10, causal=True
    )
    assert torch.equal(seen, wanted)  # lower-triangular, though the site is bidirectional
    assert not mixer.traits.causal  # padded tokens look ahead
    assert not mixer.traits.simulated


def test_the_stride_follows_the_longest_sequence_unless_it_is_given():
    for longest, stride in ((1, 16), (256, 16), (257, 17), (4096, 64), (16384, 128)):
        sparsity = built(stride=None, summary=None, max_length=longest).core.sparsity
        assert (sparsity.stride, sparsity.summary) == (stride, 8)
    lra = built(stride=None, summary=None, variant=Variant.lra, max_length=5000).core.sparsity
    assert (lra.stride, lra.summary) == (50, 10)

"""Both patterns against dense masks, their union against merged sums, reach, LRA's mask."""

from functools import partial

import pytest
import torch
from torch import Tensor

from lra.models.families.sparse_transformer import HeadUse, SparseTransformer
from lra.models.mixer import Layout, Positions, Unsupported, Variant
from lra.models.ops.sparse import key_sets
from lra.models.ops.sparse.strided_and_fixed import SparsePattern, Sparsity
from lra.models.ops.sparse.union import union_attention
from lra.models.positions import alibi_slopes
from tests import attention
from tests.attention import DIRECTIONS, builder, compare, holes
from tests.literal.sparse import (
    attention_in_sight as dense,
    far_pairs as far,
    near_pairs as near,
)

PATTERNS = pytest.mark.parametrize("pattern", list(SparsePattern))
USES = pytest.mark.parametrize("use", list(HeadUse))


heads = partial(attention.heads, number=4)


def built(**given) -> SparseTransformer:
    fixed = given.get("pattern") is not SparsePattern.strided  # which has no summary
    usual = builder(SparseTransformer, width=16, heads=4, stride=6, summary=2 if fixed else None)
    return usual(**(given if fixed else given | {"summary": None}))


def support(
    length: int, pattern: SparsePattern, use: HeadUse, layer: int, *, causal: bool
) -> Tensor:
    """What the four heads of `built()` see."""
    sees_near = near(length, pattern, 6, causal=causal)
    sees_far = far(length, pattern, 6, 2, causal=causal)
    if use is HeadUse.merged:
        return (sees_near | sees_far).expand(4, -1, -1)
    if use is HeadUse.interleave:
        return (sees_far if layer % 2 else sees_near).expand(4, -1, -1)
    other = far(length, pattern, 6, 2, causal=causal, part=1)
    return torch.stack((sees_near, sees_near, sees_far, other))


def weights_of(mixer: SparseTransformer, length: int) -> Tensor:
    """The matrix of weights of every head, by values of an identity."""
    count = mixer.heads
    q, k, _ = heads(length, width=length, number=count)
    identity = torch.eye(length, dtype=torch.float64).expand(2, count, length, length)
    return mixer.core(q, k, identity, Layout())


@DIRECTIONS
@PATTERNS
@pytest.mark.parametrize(
    "use_and_layer",
    [(HeadUse.merged, 0), (HeadUse.interleave, 0), (HeadUse.interleave, 3), (HeadUse.heads, 0)],
)
@pytest.mark.parametrize(("length", "padded"), [(1, False), (37, False), (37, True)])
def test_equals_dense_attention_with_the_mask_of_the_paper(
    length, padded, pattern, use_and_layer, causal
):
    use, layer = use_and_layer
    qkv, keep = heads(length), holes(length, real=0.4, end=length // 3) if padded else None
    core = built(pattern=pattern, head_use=use, layer=layer, depth=4, causal=causal).core
    wanted = dense(*qkv, support(length, pattern, use, layer, causal=causal), keep=keep)
    compare(core(*qkv, Layout(keep=keep)), wanted, qkv)


@DIRECTIONS
@PATTERNS
@pytest.mark.parametrize("elements", [40, 300])
def test_long_rows_in_passes_of_any_size(elements, pattern, causal, monkeypatch):
    monkeypatch.setitem(key_sets.PASS_ELEMENTS, "cpu", elements)
    monkeypatch.setattr(key_sets, "FINEST", 4)  # a staircase of many steps
    qkv = heads(61, number=2)
    core = built(pattern=pattern, stride=7, summary=3, causal=causal, heads=2).core
    sees = near(61, pattern, 7, causal=causal) | far(61, pattern, 7, 3, causal=causal)
    compare(core(*qkv, Layout()), dense(*qkv, sees), qkv)


@DIRECTIONS
@PATTERNS
def test_the_union_is_the_two_sets_merged_by_their_sums(pattern, causal):
    q, k, v = heads(37)
    sparsity = Sparsity(pattern=pattern, stride=6, summary=2, causal=causal)
    sees = near(37, pattern, 6, causal=causal)
    rest = far(37, pattern, 6, 2, causal=causal) & ~sees
    scores = q @ k.mT / 2
    sums = [scores.masked_fill(~m, -torch.inf).logsumexp(-1, keepdim=True) for m in (sees, rest)]
    sets = (sparsity.near(8, 37), sparsity.far(8, 37, alone=False))
    parts = [union_attention(q, k, v, keys) for keys in sets]
    merged = sum(o * (z - torch.logaddexp(*sums)).exp() for o, z in zip(parts, sums, strict=True))
    torch.testing.assert_close(union_attention(q, k, v, *sets), merged, atol=1e-12, rtol=0)


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


@DIRECTIONS
@PATTERNS
@pytest.mark.parametrize("use", [HeadUse.merged, HeadUse.interleave])
def test_a_stride_that_covers_the_sequence_is_full_attention(use, pattern, causal):
    qkv = heads(20)
    everything = torch.ones(20, 20, dtype=torch.bool)
    wanted = dense(*qkv, everything.tril() if causal else everything)
    for stride in (20, 50):
        core = built(pattern=pattern, head_use=use, stride=stride, causal=causal).core
        torch.testing.assert_close(core(*qkv, Layout()), wanted, atol=1e-12, rtol=0)


@DIRECTIONS
def test_far_heads_take_the_columns_of_a_block_in_turns(causal):
    mixer = built(head_use=HeadUse.heads, heads=8, width=16, stride=7, summary=2, causal=causal)
    seen = weights_of(mixer, 28)[0] > 0
    columns = [set((seen[h, 27, 14:21]).nonzero().flatten().tolist()) for h in range(4, 8)]
    assert columns == [{0, 5, 6}, {0, 3, 4}, {0, 1, 2}, {0, 5, 6}]


@DIRECTIONS
@PATTERNS
@USES
def test_alibi_lowers_scores_with_distance(pattern, use, causal):
    mixer = built(pattern=pattern, head_use=use, positions=Positions.alibi, causal=causal)
    qkv, keep = heads(29), holes(29, real=0.4, end=9)
    sees = support(29, pattern, use, 0, causal=causal)
    wanted = dense(*qkv, sees, keep=keep, slopes=alibi_slopes(4))
    compare(mixer.core(*qkv, Layout(keep=keep)), wanted, qkv)
    assert mixer.traits.positions == {"alibi", "position_infused", "rotary"}


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


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize(
    ("padded", "positions"),
    [(False, Positions.none), (True, Positions.none), (True, Positions.alibi)],
)
def test_the_cls_vector_of_the_lra_variant_sees_all_and_is_seen_by_all(length, padded, positions):
    mixer = built(variant=Variant.lra, cls=True, positions=positions)
    sees = torch.ones(length, length, dtype=torch.bool)
    rest = length - 1
    sees[1:, 1:] = near(rest, SparsePattern.fixed, 6, causal=True)
    sees[1:, 1:] |= far(rest, SparsePattern.fixed, 6, 2, causal=True)
    qkv, keep = heads(length), holes(length, real=0.4, end=length // 3) if padded else None
    slopes = alibi_slopes(4) if positions is Positions.alibi else None
    compare(mixer.core(*qkv, Layout(keep=keep)), dense(*qkv, sees, keep=keep, slopes=slopes), qkv)
    assert not mixer.traits.causal


def test_the_stride_follows_the_longest_sequence_unless_it_is_given():
    for longest, stride in ((1, 16), (256, 16), (257, 17), (4096, 64), (16384, 128)):
        sparsity = built(stride=None, summary=None, max_length=longest).core.sparsity
        assert (sparsity.stride, sparsity.summary) == (stride, 8)
    lra = built(stride=None, summary=None, variant=Variant.lra, max_length=5000).core.sparsity
    assert (lra.stride, lra.summary) == (50, 10)


def test_refusals_name_the_way_out():
    with pytest.raises(Unsupported, match="choose another pooling, or variant=faithful"):
        built(variant=Variant.lra, cls=True, causal=True)

"""Blocks against a dense mask: outputs, gradients, calls; and the LRA code's groups."""

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import pretending
from lra.models.families.local import LocalAttention, comb_attention, local_attention
from lra.models.mixer import Layout, Positions, Site, Unsupported, Variant
from lra.models.ops.sparse import key_sets
from lra.models.positions import alibi_slopes
from tests.attention import Calls, Largest, builder, compare, drawn, heads, holes
from tests.literal import sparse as reference
from tests.literal.sparse import attention_in_sight as softmax_over, blocks_in_sight

# block, look_back, look_forward, causal
PATTERNS = pytest.mark.parametrize(
    "pattern",
    [(8, 0, 0, False), (8, 0, 0, True), (8, 1, 1, False), (5, 2, 0, True), (4, 3, 1, False)],
    ids=str,
)


def support(length: int, pattern: tuple[int, int, int, bool]) -> Tensor:
    return blocks_in_sight(length, *pattern[:3], causal=pattern[3])


def options(pattern: tuple[int, int, int, bool]) -> dict[str, int | bool]:
    return dict(zip(("block", "look_back", "look_forward", "causal"), pattern, strict=True))


@PATTERNS
@pytest.mark.parametrize("length", [1, 37, 64])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_equals_dense_attention_with_a_mask_of_blocks(length, pattern, padded):
    qkv, keep = heads(length), holes(length, real=0.4, end=length // 3) if padded else None
    seen = local_attention(*qkv, **options(pattern), keep=keep)
    compare(seen, softmax_over(*qkv, support(length, pattern), keep=keep), qkv)


@PATTERNS
def test_alibi_lowers_scores_with_distance(pattern):
    qkv, slopes, keep = heads(37), alibi_slopes(3), holes(37, real=0.4, end=12)
    seen = local_attention(*qkv, **options(pattern), keep=keep, slopes=slopes)
    wanted = softmax_over(*qkv, support(37, pattern), keep=keep, slopes=slopes)
    compare(seen, wanted, qkv)


@PATTERNS
@pytest.mark.parametrize("elements", [1, 200])
def test_the_size_of_a_pass_changes_nothing(elements, pattern, monkeypatch):
    monkeypatch.setitem(key_sets.PASS_ELEMENTS, "cpu", elements)
    qkv = heads(37)
    compare(
        local_attention(*qkv, **options(pattern)), softmax_over(*qkv, support(37, pattern)), qkv
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("block", "look"), [(30, 0), (1000, 0), (10, 2), (7, 100)])
def test_blocks_that_cover_the_sequence_are_full_attention(block, look, causal):
    qkv = heads(30)
    seen = local_attention(
        *qkv, block=block, look_back=look, look_forward=0 if causal else look, causal=causal
    )
    everything = torch.ones(30, 30, dtype=torch.bool)
    compare(seen, softmax_over(*qkv, everything.tril() if causal else everything), qkv)
    assert not torch.allclose(local_attention(*qkv, block=29, causal=causal), seen)


def test_values_may_have_another_width_than_keys():
    q, k, v = heads(21)[0], heads(21)[1], drawn(2, 3, 21, 7, seed=4).requires_grad_()
    compare(
        local_attention(q, k, v, block=6, look_back=1),
        softmax_over(q, k, v, support(21, (6, 1, 0, False))),
        [q, k, v],
    )


def site(**facts) -> Site:
    return Site(**({"width": 12, "heads": 3, "max_length": 64} | facts))


built = builder(LocalAttention, block=8, look_back=0, look_forward=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("blocks", [1, 2])
def test_blocks_that_see_all_are_one_call_of_the_kernel(blocks, causal):
    qkv = [torch.randn(2, 4, 64 * blocks, 32) for _ in range(3)]
    with Calls() as calls, Largest() as largest:
        local_attention(*qkv, block=64, look_back=1, look_forward=0 if causal else 1, causal=causal)
    assert len([name for name in calls.names if name != "promote_types"]) == 1
    assert largest.elements == qkv[0].numel()


@pytest.mark.parametrize(("causal", "last"), [(False, 384), (True, 256)])
def test_short_sequences_take_a_mask_and_longer_ones_blocks(causal, last):
    options = {"block": 64, "look_back": 1, "look_forward": 0 if causal else 1, "causal": causal}
    for length in (last, last + 64):
        with pretending():
            qkv = [torch.randn(2, 4, length, 32) for _ in range(3)]
            with Calls() as calls, Largest() as largest:
                local_attention(*qkv, **options)
        dense = any("scaled_dot_product" in name for name in calls.names)
        assert dense == (length == last)
        # The mask is one for all heads.
        assert largest.elements < 2.5 * max(length**2, 8 * length * 128)
    with Calls() as calls:  # of which draws would be others
        local_attention(*(torch.randn(2, 4, 64, 32) for _ in range(3)), **options, dropout=0.5)
    assert not any("scaled_dot_product" in name for name in calls.names)


@pytest.mark.parametrize("longest", [32, 33, 39], ids=lambda n: f"longest{n}")
@pytest.mark.parametrize("length", [1, 20, 32])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_the_lra_variant_attends_in_combs_with_zeros_between(length, longest, padded):
    qkv, keep = heads(length), holes(length, real=0.4, end=length // 3) if padded else None
    facts = {"block": 8, "longest": longest, "keep": keep}
    compare(comb_attention(*qkv, **facts), reference.comb_attention(*qkv, **facts), qkv)


def test_a_comb_has_one_group_more_than_the_length_has_blocks():
    q, k, _ = heads(32, width=32)
    identity = torch.eye(32, dtype=torch.float64).expand(2, 3, 32, 32)
    weights = comb_attention(q, k, identity, block=8, longest=32)
    i = torch.arange(32)
    assert torch.equal(weights[0, 0] > 0, i % 5 == (i % 5)[:, None])
    total = weights.sum(-1)
    # 5 groups of 8 places hold 32 tokens: groups 0 and 1 one zero each, the others two
    assert ((total > 0.3) & (total < 1)).all()
    torch.testing.assert_close(
        comb_attention(0 * q, k, identity, block=8, longest=32).sum(-1)[0, 0, :5],
        torch.tensor([7, 7, 6, 6, 6], dtype=torch.float64) / 8,
    )


def test_the_lra_variant_hides_other_tokens_than_padding():
    """Of 6 groups of 8, token 7 has the bit of position 1 x 8 + 1."""
    mixer = built(variant=Variant.lra, max_length=40, block=8)
    assert (mixer.traits.max_length, mixer.traits.row_stochastic) == (40, False)
    assert mixer.traits.hides_others
    assert "keep" not in mixer.traits.supports
    x, keep = drawn(2, 40, 12), torch.ones(2, 40, dtype=torch.bool)
    keep[:, 9] = False
    moved = x.clone()
    moved[:, 7] += 1
    here, there = (mixer(each, Layout(keep=keep)) for each in (x, moved))
    others = torch.arange(40) != 7
    torch.testing.assert_close(here[:, others], there[:, others], atol=1e-12, rtol=0)
    mean = mixer.merge(mixer.split(mixer.v_proj(x[:, 1::6])).sum(2, keepdim=True) / 8)  # one is 0
    torch.testing.assert_close(here[:, 7:8], mean, atol=1e-12, rtol=0)


def test_refusals_name_the_way_out():
    with pytest.raises(Unsupported, match="got look_forward=1; set it to 0"):
        built(causal=True, look_forward=1)
    with pytest.raises(Unsupported, match="set variant=faithful"):
        built(causal=True, variant=Variant.lra)
    with pytest.raises(ValueError, match=r"up to 16 tokens: got 17.*larger max_length"):
        built(variant=Variant.lra, max_length=16)(drawn(1, 17, 12), Layout())


def test_alibi_and_rotary_positions_enter_the_mixer():
    x = drawn(1, 30, 12)
    names = ("none", "alibi", "rotary")
    seen = {p: built(positions=Positions[p], look_back=1) for p in names}
    for mixer in seen.values():
        mixer.load_state_dict(seen["none"].state_dict())
    out = {name: mixer(x, Layout()) for name, mixer in seen.items()}
    mixer = seen["alibi"]
    qkv = mixer.project(x, Layout())
    wanted = softmax_over(*qkv, support(30, (8, 1, 0, False)), slopes=alibi_slopes(3))
    torch.testing.assert_close(out["alibi"], mixer.merge(wanted), atol=1e-12, rtol=0)
    assert not torch.allclose(out["none"], out["alibi"])
    assert not torch.allclose(out["none"], out["rotary"])
    assert seen["alibi"].traits.positions == {"alibi", "position_infused", "rotary"}

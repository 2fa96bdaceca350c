"""Blocks against a dense mask: outputs, gradients, calls; and the LRA code's groups."""

import pytest
import torch

from lra.models.contract.counting import fake_tensors
from lra.models.families.local import LocalAttention, comb_attention, local_attention
from lra.models.mixer import Layout, Variant
from tests.attention import Calls, Largest, builder, drawn, heads

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
        with fake_tensors():
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

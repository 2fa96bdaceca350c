"""Big Bird against a dense mask of the same plan, and the plan itself."""

import logging

import pytest
import torch

from lra.models.families import big_bird
from lra.models.mixer import Layout, PaddingRule, Positions
from lra.models.ops.exact import softmax_attention
from lra.models.ops.sparse import block_lists
from lra.models.ops.sparse.big_bird_plan import BigBirdPlan, PlanChoice
from tests.attention import DIRECTIONS
from tests.models.families.big_bird_forms import agree, built, dense, heads, table


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 28, 61, 101])
@pytest.mark.parametrize("random_blocks", [0, 2])
@pytest.mark.parametrize("positions", [Positions.none, Positions.alibi])
def test_equals_the_dense_mask_of_its_plan(causal, length, random_blocks, positions) -> None:
    mixer = built(causal=causal, random_blocks=random_blocks, positions=positions)
    qkv = heads(length)
    agree(mixer.core(*qkv, Layout()), dense(mixer, *qkv), qkv)


@pytest.mark.parametrize("plan", [*PlanChoice])
def test_official_plans_and_large_blocks_equal_their_dense_mask(plan: PlanChoice) -> None:
    mixer, qkv = built(300, block=16, random_blocks=3, plan=plan), heads(270)
    agree(mixer.core(*qkv, Layout()), dense(mixer, *qkv), qkv)


@DIRECTIONS
def test_holes_are_hidden_as_in_the_dense_mask(causal: bool) -> None:
    mixer, qkv = built(causal=causal), heads(64)
    keep = torch.rand(2, 64, generator=torch.Generator().manual_seed(5)) < 0.5
    keep[:, -1] = True
    keep[0, 9:40] = False
    agree(mixer.core(*qkv, Layout(keep=keep)), dense(mixer, *qkv, keep=keep), qkv)


def test_original_padding_is_masked_in_the_plan_of_the_padded_length() -> None:
    mixer, qkv = built(padding=PaddingRule.original), heads(64)
    keep = torch.arange(64) < torch.tensor([[9], [47]])
    agree(mixer.core(*qkv, Layout(keep=keep)), dense(mixer, *qkv, keep=keep), qkv)
    exact = built().core(*qkv, Layout(keep=keep))
    assert not torch.allclose(mixer.core(*qkv, Layout(keep=keep))[1, :, :47], exact[1, :, :47])


@DIRECTIONS
@pytest.mark.parametrize("elements", [1, 4000])
def test_the_size_of_a_pass_changes_nothing(elements: int, causal: bool, monkeypatch) -> None:
    monkeypatch.setitem(block_lists.PASS_ELEMENTS, "cpu", elements)
    mixer, qkv = built(causal=causal), heads(37)
    agree(mixer.core(*qkv, Layout()), dense(mixer, *qkv), qkv)


@DIRECTIONS
def test_a_plan_of_all_blocks_is_full_attention(causal: bool, monkeypatch) -> None:
    monkeypatch.setattr(BigBirdPlan, "least", 0)  # no short cut through exact attention
    full = softmax_attention(*heads(40), causal=causal)
    for drawn_blocks in (7, 20):
        mixer = built(40, causal=causal, random_blocks=drawn_blocks)
        assert all(len(x) == len(set(x)) for rows in table(mixer, 10) for x in rows)
        o = mixer.core(*heads(40), Layout())
        torch.testing.assert_close(o, full, atol=1e-12, rtol=0)
    assert not torch.allclose(built(40, causal=causal).core(*heads(40), Layout()), full)


@DIRECTIONS
def test_short_sequences_run_as_exact_attention_and_say_so_once(
    causal, monkeypatch, caplog
) -> None:
    monkeypatch.setattr(big_bird, "BlockListAttention", None)
    big_bird._report.cache_clear()
    mixer, longest = built(causal=causal), 20 if causal else 24
    state = {name: value.clone() for name, value in mixer.state_dict().items()}
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            qkv = heads(longest)
            agree(mixer.core(*qkv, Layout()), softmax_attention(*qkv, causal=causal), qkv)
    assert len(caplog.records) == 1
    assert f"length {longest} has {longest // 4} blocks" in caplog.text
    assert all(torch.equal(value, state[name]) for name, value in mixer.state_dict().items())
    with pytest.raises(AttributeError):
        mixer.core(*heads(longest + 1), Layout())

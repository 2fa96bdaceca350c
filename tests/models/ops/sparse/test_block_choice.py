"""The choice of blocks against sorting by hand."""

import pytest
import torch

from lra.models.mixer import Layout
from lra.models.ops.sparse import block_choice
from lra.models.ops.sparse.block_choice import block_selection, chosen_by_mean
from lra.models.ops.sparse.block_table import laid_out
from tests.attention import Largest, drawn
from tests.literal.moba import best_blocks


def test_equal_scores_give_the_earlier_block():
    scores = torch.tensor([[[[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]]]])
    assert block_selection(scores, 3).tolist() == [[[[1, 2, 4], [0, 1, 2]]]]


@pytest.mark.parametrize("top", [1, 3, 6, 9])
def test_it_is_sorting_by_score_and_then_by_place(top):
    scores = drawn(2, 3, 20, 6).mul(3).round()  # many are equal
    scores[scores < -1] = -torch.inf
    forced = torch.rand(2, 1, 20, 6, generator=torch.Generator().manual_seed(1)) < 0.1
    forced &= forced.cumsum(-1) <= top
    lists = block_selection(scores.clone(), top, forced)
    assert lists.shape[-1] == min(top, 6)
    for b, g, i in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(20)):
        row = scores[b, g, i].tolist()
        some = forced[b, 0, i].nonzero().flatten().tolist()
        wanted = best_blocks(row, top, some)
        listed = [m for m in lists[b, g, i].tolist() if m >= 0]
        assert sorted(listed) == sorted(wanted)
        assert [m for m in listed if m not in some] == [m for m in wanted if m not in some]


def test_what_may_not_be_seen_is_not_chosen_even_if_forced():
    scores = torch.tensor([[[[1.0, -torch.inf, 2.0]]]])
    forced = torch.tensor([[[[True, True, False]]]])
    assert block_selection(scores, 3, forced).tolist() == [[[[0, 2, -1]]]]


@pytest.mark.parametrize("causal", [False, True])
def test_scores_are_formed_for_some_queries_at_a_time(causal, monkeypatch):
    q, k = drawn(2, 3, 90, 4), drawn(2, 3, 90, 4, seed=1)
    table = laid_out(Layout(), 90, 4, causal=causal, like=q)
    wanted = chosen_by_mean(q, table.contents(k), table, 4, causal=causal)
    monkeypatch.setitem(block_choice.PASS_ELEMENTS, "cpu", 1)
    with Largest() as largest:
        lists = chosen_by_mean(q, table.contents(k), table, 4, causal=causal)
    assert torch.equal(lists, wanted)
    assert largest.elements <= max(lists.numel(), table.contents(k).numel())

"""The index: its scores, and the choice among equal scores."""

import pytest
import torch

from lra.models.ops.sparse.index_scores import Index, best_entries, nearness

ALL = slice(None)


def draws(*shape: int) -> torch.Tensor:
    """Return normal numbers of a fixed seed, in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("weighted", [False, True])
def test_scores_add_up_the_rectified_products_of_the_heads(weighted):
    q, keys, weights = draws(2, 3, 5, 4), draws(2, 7, 4), draws(2, 3, 5) if weighted else None
    scores = Index(q, keys, weights).scores(ALL)
    assert scores.shape == (2, 1, 5, 7)
    for b, t, s in [(0, 0, 0), (1, 4, 6), (1, 2, 3)]:
        wanted = sum(
            (1.0 if weights is None else weights[b, h, t])
            * max(0.0, float(q[b, h, t] @ keys[b, s]) / 2)
            for h in range(3)
        )
        assert float(scores[b, 0, t, s]) == pytest.approx(float(wanted), abs=1e-12)


def test_by_head_products_have_no_relu():
    q, keys = draws(1, 2, 3, 4), draws(1, 5, 4)
    scores = Index(q, keys, by_head=True).scores(ALL)
    torch.testing.assert_close(scores[0], q[0] @ keys[0].mT / 2)
    assert scores.min() < 0


def test_a_negative_weight_makes_the_most_similar_key_the_one_not_chosen():
    q, keys = torch.ones(1, 1, 1, 2), torch.tensor([[[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]])
    scores = Index(q, keys, -torch.ones(1, 1, 1)).scores(ALL)
    chosen = best_entries(scores, torch.arange(3)[None, None, None], 2)
    assert set(chosen.flatten().tolist()) == {1, 2}


def test_the_nearer_of_equal_scores_is_chosen():
    scores = torch.tensor([[[[0.0, 2.0, 0.0, 0.0, -0.0, 1.0]]]])
    near = nearness(torch.tensor([[5]]), 6, causal=True)
    for top, chosen in [(1, {1}), (2, {1, 5}), (3, {1, 5, 4}), (4, {1, 5, 4, 3})]:
        assert set(best_entries(scores, near, top).flatten().tolist()) == chosen
    two_sided = nearness(torch.tensor([[2]]), 6, causal=False)
    equal = torch.zeros(1, 1, 1, 6)
    chosen = [set(best_entries(equal, two_sided, top).flatten().tolist()) for top in (1, 2, 3, 4)]
    assert chosen == [{2}, {2, 1}, {2, 1, 3}, {2, 1, 3, 0}]


def test_half_of_the_scores_of_one_rectified_head_are_equal():
    q, keys = draws(1, 1, 64, 16), draws(1, 64, 16)
    scores = Index(q, keys).scores(ALL)
    assert 0.4 < float((scores == 0).double().mean()) < 0.6


def test_the_same_entries_as_a_stable_sort_by_score_and_nearness():
    scores = (2 * draws(3, 2, 40, 24)).round().clamp(min=0)
    later = torch.arange(24) > torch.arange(40)[:, None]
    scores = scores.masked_fill(later, -torch.inf)
    chosen = best_entries(scores, torch.arange(24)[None, None, None], 6)
    order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :6]
    wanted = 23 - order
    wanted = wanted.masked_fill(scores.gather(-1, wanted) == -torch.inf, -1)
    assert torch.equal(chosen.sort(-1).values, wanted.sort(-1).values)


def test_missing_entries_are_minus_one():
    scores = torch.tensor([[[[0.5, -torch.inf, -torch.inf]]]])
    for top in (2, 3, 9):
        chosen = best_entries(scores, torch.arange(3)[None, None, None], top)
        assert sorted(chosen.flatten().tolist()) == [-1] * (min(top, 3) - 1) + [0]

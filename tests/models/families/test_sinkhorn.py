"""Sinkhorn attention's choices of blocks, its limits, and what may not leak."""

import torch

from lra.models.families.sinkhorn import Sort
from lra.models.mixer import Layout
from lra.models.ops import sorting
from tests.attention import drawn, heads
from tests.models.families.sinkhorn_forms import BLOCK, built


def test_two_best_blocks_are_the_two_largest_by_turns():
    scores = drawn(1, 1, 3, 6, seed=2)
    places, shares = sorting.best(scores, None, 2)
    p = scores.softmax(-1)
    first, at = p.max(-1)
    rest = p.scatter(-1, at[..., None], 0)
    torch.testing.assert_close(shares[..., 0], first)
    torch.testing.assert_close(shares[..., 1], (rest / rest.sum(-1, keepdim=True)).amax(-1))
    assert torch.equal(places[..., 1], rest.argmax(-1))


def test_where_no_second_block_is_free_the_null_block_stands_in():
    mixer = built(causal=True, sort=Sort.topk, top_blocks=2)
    q, k, v = heads(8)
    keys, _, seen = mixer.core.arrange(
        *(sorting.split_blocks(x, BLOCK) for x in (k, v)), None, drawn(2, 3, 2, 3)
    )
    assert seen is None
    null = mixer.core.null_key.expand(2, -1, 1, 2 * BLOCK, -1)[:, :, 0]
    torch.testing.assert_close(keys[:, :, 0], null)
    assert mixer.core(q, k, v, Layout(), drawn(2, 3, 2, 3)).isfinite().all()


def test_the_iterations_end_on_rows_and_columns_follow_in_the_limit():
    scores = 2 * drawn(1, 4, 12, 12)
    off = []
    for iterations in (1, 2, 5, 20, 400):
        S = sorting.sinkhorn(scores, iterations=iterations)
        torch.testing.assert_close(
            S.sum(-1), torch.ones(1, 4, 12, dtype=S.dtype), rtol=1e-13, atol=0
        )
        off.append((S.sum(-2) - 1).abs().max().item())
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.3
    assert off[-1] < 1e-12


def test_columns_divided_by_later_rows_would_leak():
    """Why the causal form departs from the paper."""
    scores = drawn(1, 1, 5, 6)
    moved = scores.clone()
    moved[..., 4, :] *= 6
    free = sorting.choices(None, 5, causal=True, device=scores.device)

    def rows(scores, causal):
        return sorting.sinkhorn(scores, free, iterations=5, causal=causal)[..., :4, :]

    assert torch.equal(rows(scores, True), rows(moved, True))
    assert not torch.allclose(rows(scores, False), rows(moved, False))

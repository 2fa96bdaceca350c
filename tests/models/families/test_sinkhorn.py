"""Sinkhorn attention against loops written from the paper, its limits, and what may not leak."""

import pytest
import torch

from lra.models.families.sinkhorn import Sort, SortNet
from lra.models.mixer import Layout
from lra.models.ops import sorting
from lra.models.ops.exact import softmax_attention
from tests.attention import DIRECTIONS, compare, drawn, heads
from tests.models.families.sinkhorn_forms import BLOCK, NETS, SORTS, built, literal, padding


@DIRECTIONS
@SORTS
@pytest.mark.parametrize(("length", "padded"), [(3, False), (8, False), (10, False), (10, True)])
def test_outputs_and_gradients_equal_the_loops(sort, causal, length, padded):
    mixer = built(causal=causal, sort=sort)
    q, k, v = heads(length)
    n = -(-length // BLOCK)
    scores = (2 * drawn(2, 3, n, n + causal, seed=7)).requires_grad_()
    keep = padding(length) if padded else None
    inputs = [q, k, v, scores, *(mixer.core.parameters() if causal else ())]
    o = mixer.core(q, k, v, Layout(keep=keep), scores)
    wanted = literal(mixer, [q, k, v], scores, keep)
    compare(o, wanted, inputs, rtol=1e-10, atol=1e-11, looser=10)


@SORTS
def test_a_permutation_sorts_whole_blocks(sort):
    q, k, v = heads(16)
    order = torch.tensor([2, 0, 3, 1])
    scores = (1e4 * torch.eye(4, dtype=torch.float64))[order].expand(2, 3, 4, 4)
    own = torch.arange(16) // BLOCK
    visible = (own == own[:, None]) | (own == order.repeat_interleave(BLOCK)[:, None])
    wanted = softmax_attention(q, k, v, visible=visible[None, None])
    o = built(sort=sort).core(q, k, v, Layout(), scores)
    torch.testing.assert_close(o, wanted, rtol=1e-12, atol=1e-13)


@SORTS
@pytest.mark.parametrize("padded", [False, True])
def test_sortcut_shows_every_query_the_first_sorted_blocks(sort, padded):
    q, k, v = heads(18)
    keep = padding(18) if padded else None
    mixer, scores = built(sortcut=2, sort=sort), drawn(2, 3, 5, 5, seed=3)
    seen = mixer.core(q, k, v, Layout(keep=keep), scores)
    real = sorting.real_tokens(keep, 18, BLOCK, q.device)
    shape = (x if keep is None else x * keep[:, None, :, None] for x in (k, v))
    keys, values, some = built(sort=sort).core.arrange(
        *(sorting.cut(x, BLOCK) for x in shape), real, scores
    )
    flat = (x[:, :, :2].flatten(2, 3) for x in (keys, values, some[..., None]))
    keys, values, some = flat
    weights = torch.where(some.mT, q @ keys.mT / 4**0.5, -torch.inf).softmax(-1).nan_to_num()
    torch.testing.assert_close(seen, weights @ values, rtol=1e-11, atol=1e-12)


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
        *(sorting.cut(x, BLOCK) for x in (k, v)), None, drawn(2, 3, 2, 3)
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


def test_large_scores_neither_overflow_nor_clip():
    scores = torch.tensor([[0.0, 500.0], [500.0, 900.0]])[None, None]
    S = sorting.sinkhorn(scores, iterations=8)
    torch.testing.assert_close(S.sum(-1), torch.ones(1, 1, 2))
    torch.testing.assert_close(S.double(), sorting.sinkhorn(scores.double(), iterations=8))
    assert (
        S[0, 0, 0, 1] > 0.999
    )  # clipped to [-1, 1] before the exponential it could be no more than 0.88


@DIRECTIONS
@NETS
@SORTS
def test_the_gradient_reaches_the_sort_net(sort, sort_net, causal):
    mixer = built(causal=causal, sort_net=sort_net, sort=sort)
    x = drawn(2, 30, 12).requires_grad_()
    inputs = [mixer.sort_in.weight, mixer.sort_out] if sort_net is SortNet.mlp else [x]
    loss = mixer(x, Layout()).square().sum()
    for gradient in torch.autograd.grad(loss, inputs):
        assert gradient.abs().max() > 1e-6


@DIRECTIONS
def test_the_sort_net_is_the_papers_formula(causal):
    mixer = built(causal=causal)
    x, keep = drawn(2, 18, 12), padding(18)
    scores = mixer.block_scores(x.masked_fill(~keep[..., None], 0))
    assert scores.shape == (2, 3, 5, 5 + causal)
    for b in range(2):
        for i in range(5):
            tokens = range(i * BLOCK + 1) if causal else range(i * BLOCK, min(18, (i + 1) * BLOCK))
            pooled = sum((x[b, t] for t in tokens if keep[b, t]), torch.zeros(12).double()) / BLOCK
            hidden = mixer.sort_in(pooled).relu().view(3, 1, 4)
            wanted = (hidden @ mixer.sort_out + mixer.sort_bias).relu()[:, 0, : 5 + causal]
            torch.testing.assert_close(scores[b, :, i], wanted, rtol=1e-12, atol=1e-13)


def test_mean_scores_leave_padding_out():
    q, k, _ = heads(18)
    keep = padding(18)
    real = sorting.real_tokens(keep, 18, BLOCK, q.device)
    blocks = [sorting.cut(x, BLOCK) for x in (q, k)]
    seen = sorting.mean_scores(*blocks, real, causal=False)
    mean = [x[0, 0, 12:16][keep[0, 12:16]].mean(0) for x in (q, k)]
    torch.testing.assert_close(seen[0, 0, 3, 3], mean[0] @ mean[1] / 4**0.5)
    seen = sorting.mean_scores(*blocks, None, causal=True)
    before, block = q[1, 2, : 2 * BLOCK + 1].mean(0), k[1, 2, BLOCK : 2 * BLOCK].mean(0)
    torch.testing.assert_close(seen[1, 2, 2, 2], before @ block / 4**0.5)
    assert not seen[..., 0].any()


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

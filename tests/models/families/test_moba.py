"""Mixture of block attention against its paper, written out, and against exact attention."""

import pytest
import torch
from torch import Tensor

from lra.models.families.moba import Moba
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Flow, Layout
from tests.attention import DIRECTIONS, builder, compare, drawn, holes
from tests.literal.sparse import attention_in_sight, moba_pairs

WIDTH, HEADS = 12, 3


def built(*, family=Moba, dtype=torch.float64, **given):
    return builder(family)(**given).to(dtype)


def literal(mixer: Moba, x: Tensor, block: int, top: int) -> Tensor:
    q, k, v = mixer.project(x, Layout())
    with torch.no_grad():
        sees = moba_pairs(q, k, block, top, causal=mixer.traits.causal)
    return mixer.merge(attention_in_sight(q, k, v, sees))


def of_parts(mixer: Moba, x: Tensor, parts: Tensor, *options: int) -> Tensor:
    """Return the literal form of the tokens with each number alone; 0 where it is negative."""
    y = torch.zeros_like(x)
    for row, numbers in enumerate(parts):
        for number in numbers[numbers >= 0].unique():
            here = (numbers == number).nonzero()[:, 0]
            alone = literal(mixer, x[row : row + 1, here], *options)
            y = y.index_put((torch.tensor(row), here), alone[0])
    return y


@DIRECTIONS
@pytest.mark.parametrize(
    ("length", "block", "top"), [(19, 4, 2), (24, 4, 3), (13, 3, 1), (9, 1, 3)]
)
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_it_is_the_paper(causal, length, block, top, padded):
    mixer = built(causal=causal, block=block, top=top)
    x, keep = drawn(2, length, WIDTH).requires_grad_(), None
    parts = torch.zeros(2, length, dtype=torch.int64)
    if padded:
        keep = holes(length, real=0.7)
        keep[1, : 2 * block] = False
        parts -= 1 - keep.long()
    seen = mixer(x, Layout(keep=keep))
    seen = seen.masked_fill(parts[..., None] < 0, 0)
    wanted = of_parts(mixer, x, parts, block, top)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-11)


@DIRECTIONS
@pytest.mark.parametrize(("block", "top"), [(4, 5), (4, 50), (19, 1), (1000, 1), (1, 19)])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_with_all_blocks_chosen_it_is_exact_attention_to_the_bit(causal, block, top, padded):
    mixer = built(causal=causal, block=block, top=top, dtype=torch.float32)
    exact = built(causal=causal, family=SDPA, dtype=torch.float32)
    exact.load_state_dict(mixer.state_dict())
    x, layout = drawn(2, 19, WIDTH).float(), Layout(keep=holes(19) if padded else None)
    assert torch.equal(mixer(x, layout), exact(x, layout))
    less = built(causal=causal, block=4, top=2, dtype=torch.float32)(x, layout)
    assert not torch.allclose(less, exact(x, layout))


def test_lists_of_all_blocks_that_a_query_may_see_are_exact_attention():
    """One block is not chosen, which the first 16 queries do not see."""
    mixer, exact = built(causal=True, block=4, top=4), built(causal=True, family=SDPA)
    exact.load_state_dict(mixer.state_dict())
    x = drawn(2, 20, WIDTH)
    full = exact(x, Layout())
    seen = mixer(x, Layout())
    torch.testing.assert_close(seen[:, :16], full[:, :16], atol=1e-13, rtol=0)
    assert not torch.allclose(seen[:, 16:], full[:, 16:])


@DIRECTIONS
def test_what_is_not_chosen_changes_nothing(causal):
    mixer = built(causal=causal, block=4, top=2)
    q, k, v = mixer.project(drawn(1, 24, WIDTH), Layout())
    sees = moba_pairs(q, k, 4, 2, causal=causal)[0]
    o = mixer.core(q, k, v, Layout())
    for h, i in ((0, 23), (1, 17), (2, 12)):
        loud = v.masked_fill(~sees[h, i][:, None], 1e3)
        moved = mixer.core(q, k, loud, Layout())
        assert torch.equal(moved[0, h, i], o[0, h, i])
        assert not torch.equal(moved[0, h], o[0, h])


@DIRECTIONS
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_each_document_gives_what_it_gives_alone(causal, padded):
    mixer, x = built(causal=causal, block=3, top=2), drawn(2, 23, WIDTH).requires_grad_()
    document = torch.tensor([[5] * 10 + [-2] * 13, [1] + [9] * 14 + [1] * 8])
    keep = holes(23) if padded else None
    whole = mixer(x, Layout(document=document, keep=keep))
    parts = document + 2
    if keep is not None:
        parts[~keep] = -1
    whole = whole.masked_fill(parts[..., None] < 0, 0)
    compare(whole, of_parts(mixer, x, parts, 3, 2), [x, *mixer.parameters()], atol=1e-11)


@pytest.mark.parametrize(("memory", "blocks"), [(1, 1), (2, 2), (5, 2), (6, 3), (9, 3)])
def test_a_memory_is_whole_blocks_that_hold_the_last_tokens(memory, blocks):
    mixer, x = built(causal=True, block=4, top=99), drawn(1, 30, WIDTH)
    state = mixer.initial_state(1, memory)
    assert state[0].shape == (1, HEADS, 4 * blocks, WIDTH // HEADS)
    q, k, v = mixer.project(x, Layout())
    i, j = torch.arange(30)[:, None], torch.arange(30)
    sees = (j <= i) & (i // 4 - j // 4 < blocks)
    wanted = mixer.merge(attention_in_sight(q, k, v, sees))
    for piece in x.split([11, 1, 1, 17], dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, n = flow.state, piece.shape[1]
        torch.testing.assert_close(flow.x, wanted[:, :n], atol=1e-12, rtol=0)
        wanted = wanted[:, n:]
    with pytest.raises(ValueError, match="memory counts tokens, at least the newest: got 0"):
        mixer.initial_state(1, 0)


def test_a_stream_has_no_documents():
    mixer = built(causal=True, block=4)
    document = torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="reset rows where documents begin"):
        mixer.extend(Flow(drawn(1, 3, WIDTH), mixer.initial_state(1, 9)), Layout(document=document))


def test_bad_options_say_what_is_wanted():
    with pytest.raises(ValueError, match=r"block is the number of tokens.*at least 1: got 0"):
        built(block=0)
    with pytest.raises(ValueError, match="top counts blocks, at least the own one: got 0"):
        built(top=0)

"""What the plans of Big Bird hold, and what the family refuses."""

import math

import numpy as np
import pytest
import torch

from lra.models.families.big_bird import BigBird
from lra.models.mixer import Growth, Layout, PaddingRule, Unsupported, Variant
from lra.models.ops.exact import softmax_attention
from lra.models.ops.sparse.big_bird_plan import PlanChoice, choose
from tests.attention import drawn
from tests.models.families.big_bird_forms import HEADS, PLAN, agree, built, heads, table


@pytest.mark.parametrize("random_blocks", [0, 1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 8, 9, 16, 40])
def test_each_row_sees_window_ends_and_others_once(random_blocks: int, blocks: int) -> None:
    mixer = built(160, random_blocks=random_blocks)
    for rows in table(mixer, blocks):
        for row, entries in enumerate(rows):
            fixed = {row - 1, row, row + 1, 0, blocks - 1} & set(range(blocks))
            assert len(entries) == len(set(entries)) == min(blocks, len(fixed) + random_blocks)
            assert fixed <= set(entries) <= set(range(blocks))


@pytest.mark.parametrize("random_blocks", [0, 1, 3])
def test_causal_rows_see_the_past_alone_whatever_comes_later(random_blocks: int) -> None:
    mixer = built(160, random_blocks=random_blocks, causal=True)
    for rows in table(mixer, 40):
        for row, entries in enumerate(rows):
            fixed = {row - 1, row, 0} & set(range(row + 1))
            assert len(entries) == len(set(entries)) == min(row + 1, len(fixed) + random_blocks)
            assert fixed <= set(entries) <= set(range(row + 1))
    for blocks in (1, 7, 39):
        for short, long in zip(table(mixer, blocks), table(mixer, 40), strict=True):
            assert short == long[:blocks]


def test_every_choice_of_blocks_is_equally_likely() -> None:
    draws = torch.randint(2**31 - 1, (1, 30_000, 2), generator=torch.Generator().manual_seed(0))
    # 1 ... 7 without 3 and 4: five blocks, ten pairs
    end, skip, skipped = (torch.full((1, 30_000), x) for x in (8, 3, 2))
    blocks, real = choose(draws.int(), torch.ones_like(end), end, skip, skipped)
    assert real.all()
    pairs, counts = blocks[0, 0].sort(-1).values.unique(dim=0, return_counts=True)
    wanted = [[a, b] for a in (1, 2, 5, 6, 7) for b in (1, 2, 5, 6, 7) if a < b]
    assert pairs.tolist() == wanted
    assert (counts - 3000).abs().max() < 5 * math.sqrt(3000)


def test_the_plan_is_the_same_in_every_process_and_differs_by_head_seed_and_row() -> None:
    first = table(built(), 16)
    assert [row[5:] for row in first[0][7:10]] == PLAN
    assert first == table(built(), 16)
    assert first[0] != first[1]
    assert first != table(built(seed=1), 16)
    assert first != table(built(layer=0, seed=2), 16)


def test_the_plan_is_saved_and_no_precision_moves_it() -> None:
    mixer, other = built(seed=1), built(seed=2)
    before = table(mixer, 16)
    assert table(mixer.bfloat16(), 16) == before
    other.load_state_dict(mixer.state_dict())
    assert table(other, 16) == before


def random_of(mixer: BigBird, blocks: int) -> list[tuple[int, set[int]]]:
    fixed = 5
    pattern, rows = mixer.core.pattern, torch.arange(1, blocks - 1)
    lists = pattern.lists(mixer.core.draws, torch.tensor([blocks]), rows)
    return [
        (int(row), set(lists.blocks[0, head, i, fixed:][lists.seen[0, head, i, fixed:]].tolist()))
        for head in range(HEADS)
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("length", "reach"), [(1024, 15), (1088, 10), (3072, 16), (4096, 16), (4160, 10), (704, 10)]
)
def test_official_plans_draw_from_the_front(length: int, reach: int) -> None:
    mixer = built(length, block=64, random_blocks=3, plan=PlanChoice.official)
    found = random_of(mixer, length // 64)
    if length == 704:  # not longer than 2r + 5 blocks: anywhere but the ends
        reach = 10
    for row, blocks in found:
        assert len(blocks) == 3
        assert blocks <= set(range(1, reach)) - {row - 1, row, row + 1}
    assert {block for _, blocks in found for block in blocks} == set(range(1, reach))


def published_candidates(row: int, count: int, r: int) -> set[int]:
    """Return what the published code chooses from, written from it; blocks have 64 tokens."""
    around = {row - 1, row, row + 1}
    if count * 64 not in {1024, 3072, 4096}:
        top = 2 * r + 5
        ends = {0, top - 1} | ({top - 2} if row == 1 else set())
        return set(range(top)) - around - ends - ({1} if row == top - 2 else set())
    middle, last = list(range(1, count - 1)), 15
    if row < 3:
        return {*middle[row + 1 : last]}
    if row >= count - 3 or row - 2 > last:
        return {*middle[:last]}
    return {*middle[: row - 2], *(middle[row + 1 : last] if row + 1 != last else [])}


def published_plan(count: int, r: int) -> list[tuple[int, set[int]]]:
    """Return what each row of each head draws in the Skyformer code, by head and row."""
    random, found = np.random.RandomState(42), {}
    turns = [(head, row) for head in range(HEADS) for row in range(1, count - 1)]
    if count * 64 not in {1024, 3072, 4096}:
        turns = [(head, row) for row in range(1, count) for head in range(HEADS)]
    for head, row in turns:
        candidates = published_candidates(row, count, r)
        if count * 64 in {1024, 3072, 4096}:
            found[head, row] = {*random.permutation(sorted(candidates))[:r].tolist()}
        else:
            permuted = random.permutation(np.arange(2 * r + 5)).tolist()
            found[head, row] = {*[block for block in permuted if block in candidates][:r]}
    return [(row, found[head, row]) for head in range(HEADS) for row in range(1, count - 1)]


@pytest.mark.parametrize("random_blocks", [2, 3])
@pytest.mark.parametrize("length", [1024, 1088, 2048, 3072, 4096])
def test_verbatim_plans_are_those_that_the_published_code_draws(length, random_blocks) -> None:
    facts = {"block": 64, "random_blocks": random_blocks, "plan": PlanChoice.verbatim}
    for layer in range(2):
        mixer = built(length, **facts, layer=layer, seed=layer)
        assert random_of(mixer, length // 64) == published_plan(length // 64, random_blocks)
    assert not mixer.traits.random_draws


@pytest.mark.parametrize("longest", [1024, 2048])
def test_shorter_sequences_of_verbatim_plans_also_see_blocks_that_they_may(longest) -> None:
    mixer = built(longest, block=64, random_blocks=3, plan=PlanChoice.verbatim)
    for row, blocks in random_of(mixer, 14):
        assert len(blocks) == 3
        assert blocks <= published_candidates(row, 14, 3)


def test_lra_plans_draw_from_the_first_1024_tokens() -> None:
    for length, reach in ((4095, 16), (2047, 16), (1023, 15), (639, 9)):
        mixer = built(length, block=64, random_blocks=3, variant=Variant.lra)
        found = random_of(mixer, length // 64 + 1)
        assert all(len(blocks) == 3 for _, blocks in found)
        assert {block for _, blocks in found for block in blocks} == set(range(1, reach))


def test_draws_decide_the_function_only_where_something_is_left_to_choose() -> None:
    assert built(28).traits.random_draws  # 7 blocks: the second sees 4 and 2 of 3
    assert not built(24).traits.random_draws
    assert built(24, causal=True).traits.random_draws
    assert not built(20, causal=True).traits.random_draws
    assert not built(random_blocks=0).traits.random_draws
    wide = {"block": 256, "random_blocks": 3}
    assert built(4096, **wide).traits.random_draws
    assert not built(variant=Variant.lra).traits.random_draws  # its draws are its own
    assert not built(4096, **wide, plan=PlanChoice.official).traits.random_draws


def test_lra_form_is_full_when_causal_and_has_no_dropout() -> None:
    mixer = built(causal=True, variant=Variant.lra)
    qkv = heads(61)
    agree(mixer.core(*qkv, Layout()), softmax_attention(*qkv, causal=True), qkv)
    assert mixer.traits.operations == Growth(2.0)
    assert not mixer.traits.random_draws
    for causal in (False, True):
        mixer = built(causal=causal, variant=Variant.lra, attention_dropout=0.5)
        assert not mixer.traits.weight_dropout
        seen = mixer.core.train()(*qkv, Layout())
        assert torch.equal(seen, mixer.core.eval()(*qkv, Layout()))


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="block must be at least 1: got 0"):
        built(block=0)
    with pytest.raises(ValueError, match="random_blocks must be at least 0: got -1"):
        built(random_blocks=-1)
    with pytest.raises(
        ValueError, match="variant=lra fixes plan at lra: got official; leave it at uniform"
    ):
        built(plan=PlanChoice.official, variant=Variant.lra)
    with pytest.raises(Unsupported, match=r"plan=verbatim chooses blocks by .* set plan=uniform"):
        built(plan=PlanChoice.verbatim, causal=True)
    with pytest.raises(Unsupported, match="padding has no effect"):
        built(padding=PaddingRule.original, causal=True)
    with pytest.raises(Unsupported, match="no state that continues from token to token"):
        built(causal=True).initial_state(2, 30)
    with pytest.raises(Unsupported, match="has no cross attention"):
        built().attend(drawn(1, 8, 8), Layout(), drawn(1, 9, 8), Layout())


def test_the_lra_form_is_one_function_of_the_longest_sequence() -> None:
    """Filling up by hand, or not at all, gives the same; few blocks are no error."""
    mixer = built(64, variant=Variant.lra)
    assert mixer.traits.max_length == 64
    (q, k, v), keep = heads(64), torch.arange(64).expand(2, -1) < 40
    whole = mixer.core(q, k, v, Layout(keep=keep))
    short = mixer.core(*(x[:, :, :40] for x in (q, k, v)), Layout())
    agree(whole[:, :, :40], short, (q, k, v))
    assert not whole[:, :, 40:].any()
    with pytest.raises(ValueError, match="built for up to 64 tokens: got 65"):
        mixer.core(*heads(65), Layout())
    few = built(9, variant=Variant.lra)  # 3 blocks of 4: everything is seen, and three zeros
    (q, k, v), zeros = heads(9), torch.zeros(2, 2, 3, 4, dtype=torch.float64)
    keys, values = (torch.cat((x, zeros), 2) for x in (k, v))
    agree(few.core(q, k, v, Layout()), softmax_attention(q, keys, values), (q, k, v))

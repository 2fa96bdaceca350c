"""What the diagnostics' rows are like: baselines, frequencies, draws, groups."""

import numpy as np
import pytest
from small_diagnostics import FEW, made

from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED, distinct, first_seen
from lra.tasks.diagnostics.groups import is_even, table_of
from lra.tasks.diagnostics.permutations import Permutations
from lra.tasks.diagnostics.recall_rows import weighted_choice
from lra.tasks.diagnostics.selective_copy import SelectiveCopy


def test_baselines_by_hand():
    task = made("mqar")
    train, data = task.rows("train"), task.rows("test")
    baselines = {baseline.name: baseline for baseline in task.baselines("test")}
    asked = data.answers != NOT_ASKED
    said = train.answers[train.answers != NOT_ASKED].tolist()
    guess = max(sorted(set(said)), key=said.count)
    assert baselines["majority"].accuracy == (data.answers[asked] == guess).mean()
    last = np.repeat(data.tokens[:, 2 * task.pairs - 1], task.pairs)
    assert baselines["last_value"].accuracy == (data.answers[asked] == last).mean()
    assert baselines["last_value"].accuracy == pytest.approx(1 / task.pairs)
    assert all(baseline.outcomes is None for baseline in baselines.values())


def test_the_last_token_gives_nothing_but_the_first_product_away():
    task = made("permutations-s5", train_examples=4000, test_examples=2000)
    baselines = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert list(baselines) == ["majority", "last_token"]
    train, data = task.rows("train"), task.rows("test")
    best = {}
    for token in range(120):
        said = train.answers[train.tokens == token].tolist()
        best[token] = max(sorted(set(said)), key=said.count)
    right = np.vectorize(best.get)(data.tokens) == data.answers
    assert baselines["last_token"] == pytest.approx(right.mean())
    assert right[:, 0].mean() > 0.9
    assert right[:, 1:].mean() < 0.03


def test_the_last_symbol_is_one_of_the_items():
    task = made("selective_copy", test_examples=2000)
    baselines = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert baselines["last_symbol"] == pytest.approx(1 / 5 + 4 / 5 / 4, abs=0.02)
    assert baselines["majority"] == pytest.approx(1 / 4, abs=0.03)
    hits = [
        [token for token in row if 1 <= token <= 4][-1] == answer
        for row, asked in zip(*(part.tolist() for part in task.rows("test")[:2]), strict=True)
        for answer in asked
        if answer != NOT_ASKED
    ]
    assert baselines["last_symbol"] == pytest.approx(np.mean(hits))


def test_answers_and_places_are_uniform():
    many = {"train_examples": 6000}
    task = made("induction", **many)
    tokens, answers, _ = task.rows("train")
    counts = np.bincount(answers[:, -1])[1:]
    assert np.abs(counts / 1000 - 1).max() < 0.15
    first = (tokens == 0).argmax(1)
    assert np.abs(np.bincount(first) / (6000 / 18) - 1).max() < 0.25
    task = made("permutations-s3", **many)
    for place in (0, 7, 19):
        counts = np.bincount(task.rows("train").answers[:, place])
        assert np.abs(counts / 1000 - 1).max() < 0.15
    task = made("selective_copy", **many)
    there = (task.rows("train").tokens[:, :-5] != 0).mean(0)
    assert np.abs(there / (5 / 19) - 1).max() < 0.15


def test_queries_come_soon_by_the_power_law():
    words = random_words(Draw.diagnostic, 5, 20_000 * 10).reshape(-1, 10)
    drawn = weighted_choice(words, 1, 0.01)[:, 0]
    wanted = np.arange(1, 11) ** -0.99
    assert np.abs(np.bincount(drawn) / 20_000 - wanted / wanted.sum()).max() < 0.01
    even_ones = np.bincount(weighted_choice(words, 1, 1.0)[:, 0])
    assert np.abs(even_ones / 2000 - 1).max() < 0.1
    # The second one is drawn from what is left, by the same weights.
    both = weighted_choice(words, 2, 0.01)
    left = np.bincount(both[both[:, 0] == 0, 1], minlength=10) / (both[:, 0] == 0).sum()
    assert np.abs(left[1:] - wanted[1:] / wanted[1:].sum()).max() < 0.02


def test_distinct_draws_are_distinct_and_uniform():
    words = random_words(Draw.diagnostic, 6, 6000 * 3).reshape(-1, 3)
    drawn = distinct(words, 4)
    assert all(len(set(row)) == 3 for row in drawn.tolist())
    orders, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(orders) == 24
    assert np.abs(counts / 250 - 1).max() < 0.3


def test_rows_are_seen_once():
    known: set[int] = set()
    rows = np.array([[1, 2], [2, 1], [1, 2], [0, 2]])
    assert first_seen(rows, known, 2).tolist() == [0, 1]
    assert first_seen(rows, known, 9).tolist() == [3]
    assert first_seen(rows, known, 9).tolist() == []


ORDERS = {
    **{"z2": 2, "z7": 7, "z60": 60, "s2": 2, "s3": 6, "s5": 120, "a3": 3, "a4": 12, "a5": 60},
    **{"a4_x_z5": 60, "z2_x_z2_x_z3": 12, "s3_x_a4": 72},
}


@pytest.mark.parametrize("group", ORDERS)
def test_groups_are_groups(group):
    table = table_of(group)
    order = len(table.names)
    assert order == ORDERS[group] == len(set(table.names))
    assert table.product[0].tolist() == table.product[:, 0].tolist() == list(range(order))
    assert all(sorted(line) == list(range(order)) for line in table.product.tolist())
    left = table.product[table.product]  # [a, b, c]: (a b) c
    right = table.product[:, table.product]
    assert np.array_equal(left, right)
    reached = {0}
    while more := {int(table.product[a, b]) for a in reached for b in table.generators} - reached:
        reached |= more
    assert len(reached) == order
    commutes = np.array_equal(table.product, table.product.T)
    assert commutes == (group[0] == "z" or group in ("s2", "a3"))


def test_a_product_of_groups_multiplies_each_part():
    pairs, first, second = table_of("a4_x_z5"), table_of("a4"), table_of("z5")
    for a, b in ((7, 33), (59, 58), (4, 20)):
        names = [
            side.names[side.product[x, y]]
            for side, x, y in ((first, a // 5, b // 5), (second, a % 5, b % 5))
        ]
        assert pairs.names[pairs.product[a, b]] == "/".join(names)


def test_even_permutations_are_products_of_two_swaps_at_a_time():
    assert is_even((0, 1, 2))
    assert is_even((1, 2, 0))
    assert not is_even((1, 0, 2))


def test_generators_are_all_that_a_row_holds():
    task = made("permutations-a5")
    assert set(np.unique(task.rows("train").tokens)) == set(task.table.generators)


@pytest.mark.parametrize(("group", "steps", "number"), [("s5", "swaps", 11), ("s5", "three", 31)])
def test_a_row_moves_at_most_two_or_three_things(group, steps, number):
    task = Permutations(group=group, steps=steps, **FEW)
    task.prepare()
    tokens = np.unique(task.rows("train").tokens)
    assert len(tokens) == len(task.moves) == number
    moved = [sum(p != str(i) for i, p in enumerate(task.token_text(t), 1)) for t in tokens]
    assert set(moved) == ({0, 2} if steps == "swaps" else {0, 2, 3})


def test_fillers_follow_each_element():
    task = made("permutations-swaps")
    plain = Permutations(group="s5", steps="swaps", length=10, **FEW)
    plain.prepare()
    assert task.spec.vocabulary == plain.spec.vocabulary + 1 == 121
    rows, short = task.rows("train"), plain.rows("train")
    assert np.array_equal(rows.tokens[:, ::4], short.tokens)
    assert np.array_equal(rows.answers[:, 3::4], short.answers)
    assert set(rows.tokens[:, np.arange(40) % 4 > 0].flat) == {120}
    assert (rows.answers[:, np.arange(40) % 4 < 3] == NOT_ASKED).all()
    assert task.spec.source == "generated, swaps of S5, 4 tokens each"


def test_options_that_came_later_change_no_row_of_before():
    assert Permutations().spec.data_hash == "8fb80696210a7a6d"
    assert SelectiveCopy().spec.data_hash == "7e70de63776ecb88"
    assert Permutations(tokens_per_element=2).spec.data_hash != "8fb80696210a7a6d"
    assert SelectiveCopy(mark="once").spec.data_hash != "7e70de63776ecb88"


def test_blanks_are_where_the_placement_puts_them():
    task = made("selective_copy-gaps", train_examples=6000, length=15)
    before = task.rows("train").tokens[:, :9]  # 5 symbols, 4 blanks, the mark and 5 blanks
    assert (before[:, -1] != 0).all()
    blanks = np.diff(np.nonzero(before)[1].reshape(-1, 5), axis=1, prepend=-1) - 1
    assert blanks.sum(1).tolist() == [4] * 6000
    assert np.abs(blanks.mean(0) / 0.8 - 1).max() < 0.05
    # Each of four blanks goes before one of five symbols: all before the first in 1 of 625 rows.
    assert (blanks[:, 0] == 4).mean() == pytest.approx(1 / 625, abs=0.0015)
    assert (blanks[:, 0] == 0).mean() == pytest.approx(0.8**4, abs=0.02)
    tokens = made("selective_copy-memory").rows("train").tokens
    assert (tokens[:, :9] != 0).all()
    assert (tokens[:, 9:21] == 0).all()
    assert (tokens[:, 21] == 5).all()
    assert (tokens[:, 22:] == 0).all()


def test_the_copying_memory_prints_the_loss_of_a_guess():
    task = made("selective_copy-memory")
    (guess,) = [each for each in task.baselines("test") if each.name == "blind_guess"]
    assert guess.accuracy == 0.25
    assert guess.measures == {"loss": pytest.approx(np.log(4))}
    assert "9 ln 4 / 31 = 0.4025 nats" in guess.sentence

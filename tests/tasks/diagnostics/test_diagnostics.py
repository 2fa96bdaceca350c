"""The generated diagnostics, each beside a literal solver written from its definition."""

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from small_diagnostics import FEW, TASKS, made

from lra.tasks.contract import check_disjoint, check_task, fingerprint
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.duplicate import Duplicate
from lra.tasks.diagnostics.flip_flop import FlipFlop
from lra.tasks.diagnostics.induction import Induction
from lra.tasks.diagnostics.mqar import MQAR
from lra.tasks.diagnostics.permutations import Permutations
from lra.tasks.diagnostics.selective_copy import SelectiveCopy

PINNED = [
    [13, 38, 19, 29, 5, 21, 10, 31, 14, 28, 19, 5],
    [1, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0],
    [3, 6, 4, 3, 4, 1, 1, 2, 6, 0, 5, 4],
    [0, 9, 9, 4, 9, 7, 7, 1, 8, 3, 5, 5],
    [2, 5, 3, 2, 3, 0, 0, 1, 5, 4, 4, 3],
]


def lookup(task, row):
    """Read the pairs into a dictionary; a place of a query answers only where it says so."""
    known = dict(zip(row[: 2 * task.pairs : 2], row[1 : 2 * task.pairs : 2], strict=True))
    return {place: known[token] for place, token in enumerate(row) if token in known}


def copied(task, row):
    content = [token for token in row if token not in (0, task.symbols + 1)]
    marks = [place for place, token in enumerate(row) if token == task.symbols + 1]
    if task.mark == "once":
        assert set(row[marks[0] + 1 :]) == {0}
        marks = range(marks[0] + 1, len(row))
    return dict(zip(marks, content, strict=True))


def induced(task, row):
    assert row.count(0) == 2
    assert row[-1] == 0
    return {len(row) - 1: row[row.index(0) + 1]}


def repeated(task, row):
    border = row.index(0, 1)
    assert row[:border] == row[border:]
    return dict(enumerate(row[border + 1 :], border))


def multiplied(task, row):
    """Follow what stands at each point through permutations spelled as text; add remainders."""
    state, found = None, {}
    for place in range(0, len(row), task.tokens_per_element):
        parts = task.table.names[row[place]].split("/")
        kinds = task.group.split("_x_")
        state = state or ["0" if kind[0] == "z" else "123456"[: int(kind[1:])] for kind in kinds]
        state = [
            str((int(now) + int(part)) % int(kind[1:]))
            if kind[0] == "z"
            else "".join(part[int(point) - 1] for point in now)
            for kind, now, part in zip(kinds, state, parts, strict=True)
        ]
        rest = row[place + 1 : place + task.tokens_per_element]
        assert set(rest) <= {len(task.table.names)}
        found[place + len(rest)] = task.table.names.index("/".join(state))
    return found


def last_written(task, row):
    """Store the bit behind each write (0), and answer it at each read (1)."""
    found, bit = {}, None
    for place in range(0, len(row), 2):
        bit = row[place + 1] if row[place] == 0 else bit
        found |= {place: bit} if row[place] == 1 else {}
    return found


SOLVERS = {
    FlipFlop: last_written,
    MQAR: lookup,
    SelectiveCopy: copied,
    Induction: induced,
    Duplicate: repeated,
    Permutations: multiplied,
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("longer", [0, 10])
def test_a_literal_solver_finds_every_answer(name, longer):
    task = made(name, test_length=TASKS[name][1]["length"] + longer)
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, _ = task.rows(split)
        length = task.allowed_length(task.length + (longer if split == "test" else 0))
        assert tokens.shape == answers.shape == (number, length)
        assert tokens.min() >= 0
        assert tokens.max() < task.spec.vocabulary
        for row, asked in zip(tokens.tolist(), answers.tolist(), strict=True):
            said = {place: a for place, a in enumerate(asked) if a != NOT_ASKED}
            solved = SOLVERS[type(task)](task, row)
            if isinstance(task, MQAR):
                assert len(said) == task.pairs == len({row[place] for place in said})
                solved = {place: solved[place] for place in said}
            assert said == solved


@pytest.mark.parametrize("name", TASKS)
def test_batches_show_what_is_stored(name):
    task = made(name)
    tokens, answers, _ = task.rows("test")
    for batch in task.batches("test", batch_size=32, seed=0):
        rows = batch.index.numpy()
        assert np.array_equal(batch.tokens[:, 0].numpy(), tokens[rows])
        asked = answers[rows] != NOT_ASKED
        assert np.array_equal(batch.weight.numpy(), asked)
        assert np.array_equal(batch.target.numpy()[asked], answers[rows][asked])
        assert batch.keep is None
        assert batch.reset is None


def test_the_same_rows_everywhere_and_for_ever():
    """Pinned: another generator is another version."""
    rows = [
        made("mqar").rows("train").tokens[0, :12].tolist(),
        made("selective_copy").rows("train").tokens[0, :12].tolist(),
        made("induction").rows("train").tokens[0, :12].tolist(),
        made("duplicate").rows("train").tokens[0, :12].tolist(),
        made("permutations-s3").rows("train").tokens[0, :12].tolist(),
    ]
    assert rows == PINNED
    code = (
        "from lra.tasks.diagnostics.mqar import MQAR; from lra.tasks.contract import fingerprint;"
        "t = MQAR(length=30, pairs=5, vocabulary=40, train_examples=300, validation_examples=60,"
        "test_examples=80); t.prepare();"
        "print(fingerprint(t.batches('train', batch_size=8, seed=3)))"
    )
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed, "LRA_DATA": os.environ["LRA_DATA"] + seed},
        capture_output=True,
        text=True,
        check=True,
    )
    here = fingerprint(made("mqar").batches("train", batch_size=8, seed=3))
    assert there.stdout.strip() == here


def test_a_data_seed_makes_other_rows():
    first, second = made("induction"), made("induction", data_seed=1)
    assert first.spec.data_hash != second.spec.data_hash
    assert not np.array_equal(first.rows("train").tokens, second.rows("train").tokens)


@pytest.mark.parametrize("name", TASKS)
def test_test_length_changes_the_test_split_alone(name):
    short = made(name)
    long = made(name, test_length=2 * short.length)
    assert long.spec.max_length == 2 * short.length
    assert long.spec.data_hash != short.spec.data_hash
    assert long.spec.source == f"{short.spec.source}, trained at {short.length}"
    for split in ("train", "validation"):
        assert np.array_equal(short.rows(split).tokens, long.rows(split).tokens)
    # As hard: as many tokens in use, and as many answers (where not every position is asked).
    assert long.spec.vocabulary == short.spec.vocabulary
    asked = [(task.rows("test").answers != NOT_ASKED).sum(1) for task in (short, long)]
    if isinstance(short, MQAR | SelectiveCopy | Induction):
        assert set(asked[0]) == set(asked[1])
        assert len(set(asked[0])) == 1


def test_a_store_is_not_made_again_for_the_same_options():
    assert made("mqar").folder == made("mqar").folder
    assert made("mqar").folder != made("mqar", power=1.0).folder


def test_splits_share_no_row_where_there_are_many():
    options = {"symbols": 3, "length": 8, "train_examples": 800, "validation_examples": 100}
    task = Induction(**options, test_examples=100)  # 6 * 3^6 = 4,374 rows, four times as many
    task.prepare()
    assert not task.scarce(8)
    rows = [row.tobytes() for split in task.sizes for row in task.rows(split).tokens]
    assert len(rows) == len(set(rows)) == 1000
    assert task.copies_allowed("train", "test") == 0


def test_a_small_space_is_shared_out_and_not_used_up():
    task = Permutations(
        group="s3", length=3, train_examples=30, validation_examples=12, test_examples=12
    )  # 216 rows, four times as many
    task.prepare()
    rows = [row.tobytes() for split in task.sizes for row in task.rows(split).tokens]
    assert len(rows) == len(set(rows)) == 54


def test_few_rows_stand_in_several_splits_and_it_is_said():
    task = Permutations(group="s3", length=3, **FEW)
    task.prepare()
    assert task.copies_allowed("train", "test") == 1
    finding = check_disjoint(task)
    assert finding.passed
    assert "of the test examples are in train" in finding.detail
    longer = Permutations(group="s3", length=3, test_length=30, **FEW)
    assert longer.copies_allowed("train", "validation") == 1
    assert longer.copies_allowed("train", "test") == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MQAR(length=30, pairs=8), r"length must be at least 32, .* 8 pairs"),
        (lambda: MQAR(test_length=8, pairs=4), r"task\.test_length must be at least 16"),
        (
            lambda: MQAR(pairs=8, vocabulary=16),
            r"at least 18 for task\.pairs=8: got 16, which has 7 keys",
        ),
        (lambda: MQAR(pairs=0), r"must be at least 1: got task\.pairs=0"),
        (lambda: MQAR(power=0.0), r"task\.power must lie in \(0, 1\]: got 0\.0"),
        (lambda: SelectiveCopy(length=31), r"must be at least 32, .* 16 marks"),
        (lambda: SelectiveCopy(symbols=0), r"must be at least 1: got task\.symbols=0"),
        (lambda: Induction(length=2), r"task\.length must be at least 3"),
        (lambda: Induction(symbols=0), r"must be at least 1: got task\.symbols=0"),
        (lambda: Duplicate(length=33), r"must be even, .* wanted 32 or 34"),
        (lambda: Duplicate(length=32, test_length=33), r"task\.test_length must be even"),
        (lambda: Duplicate(length=2), r"must be at least 4"),
        (lambda: Permutations(length=0), r"length must be at least 1"),
        *(
            (lambda group=group: Permutations(group=group), rf"task\.group must be .*got '{group}'")
            for group in ("z1", "a2", "d4", "s7", "a4_x_", "z40_x_z30", "")
        ),
        (
            lambda: Permutations(group="a5", steps="swaps"),
            r"task\.steps=swaps needs .* task\.group=s5: got a5",
        ),
        (
            lambda: Permutations(length=3, tokens_per_element=4),
            r"length must be at least 4, because a row needs at least one element: got 3",
        ),
        (lambda: Permutations(tokens_per_element=0), r"got task\.tokens_per_element=0"),
        (
            lambda: SelectiveCopy(length=32, mark="once"),
            r"at least 33, .* 16 symbols \(task\.items\), a mark and 16 blanks: got 32",
        ),
        (lambda: SelectiveCopy(placement="back"), r"uniform"),
        (lambda: Permutations(test_examples=0), r"must be at least 1: got task\.test_examples=0"),
        (lambda: Permutations(data_seed=-1), r"data_seed must be at least 0: got -1"),
    ],
)
def test_impossible_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_rows_that_are_seen_as_a_person_reads_them():
    lines = made("mqar-blank").describe("train", 0).splitlines()
    above, below = (line.split() for line in lines)
    assert len(lines[0]) == len(lines[1])
    assert {word[0] for word in above[:6:2]} == {"k"}
    assert {word[0] for word in above[1:6:2]} == {"v"}
    assert set(above[6:]) == {"_", *above[:6:2]}
    pairs = dict(zip(above[:6:2], above[1:6:2], strict=True))
    assert below == ["."] * 6 + [pairs.get(word, ".") for word in above[6:]]
    above, below = (
        line.split() for line in made("permutations-s3").describe("test", 3).split("\n")
    )
    assert above[0] == below[0]
    assert set(above) <= {"123", "132", "213", "231", "312", "321"}
    assert made("induction").describe("test", 0).splitlines()[0].split()[-1] == "*"
    assert made("selective_copy").describe("test", 0).splitlines()[0].split()[-5:] == ["?"] * 5


def test_the_tally_counts_asked_positions_alone():
    task = made("duplicate")
    batch = next(task.batches("test", batch_size=80, seed=0))
    hit = torch.zeros(batch.target.shape, dtype=torch.bool)
    hit[:, :20] = True  # 13 … 24 are asked: 7 of 12 are right
    found = task.tally(torch.ones(batch.target.shape), hit, batch)
    assert found.count == 80 * 12
    assert found.hits == 80 * 7
    assert torch.allclose(found.hit, torch.tensor(7 / 12))


def test_blocks_join_without_a_seam():
    """More rows than one block holds, of a length that no block divides."""
    task = made("mqar", train_examples=2500)
    tokens = task.rows("train").tokens
    assert len(np.unique(tokens, axis=0)) == 2500
    assert all(not np.array_equal(first, second) for first, second in pairwise(tokens[::1024][:3]))
    assert [f for f in check_task(task) if not f.passed] == []

"""Associative recall with passes, updates, keys of two tokens and few queries; and in segments."""

from itertools import islice

import numpy as np
import pytest
import torch

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.tasks.contract import check_task, fingerprint
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.mqar import MQAR
from lra.tasks.diagnostics.segments import RowSegment

FEW = {"train_examples": 300, "validation_examples": 60, "test_examples": 80}
FORMS = {
    "passes": {"pairs": 3, "vocabulary": 20, "length": 27, "passes": 3},
    "updates": {"pairs": 5, "vocabulary": 40, "length": 34, "updates": 2},
    "grid": {"pairs": 9, "vocabulary": 40, "length": 60, "grid": 3, "filler": "blank"},
    "part of a grid": {"pairs": 4, "vocabulary": 40, "length": 60, "grid": 3, "updates": 4},
    "one query": {"pairs": 12, "vocabulary": 60, "length": 26, "queries": 1},
    "all": {"pairs": 4, "vocabulary": 40, "length": 51, "grid": 2, "updates": 1, "passes": 2,
            "queries": 2, "power": 1.0},
}  # fmt: skip
PINNED = {
    "passes": [9, 18, 3, 17, 8, 10, 9, 18, 3, 17, 8, 10, 9, 18, 3, 17, 8, 10, 9, 19, 3, 5, 10, 9],
    "updates": [13, 38, 19, 29, 5, 21, 10, 31, 14, 28, 14, 22, 5, 23, 5, 7, 14, 16, 13, 13, 10, 21],
    "grid": [2, 25, 30, 8, 25, 32, 2, 21, 33, 1, 25, 35, 8, 18, 37, 8, 21, 34, 2, 18, 28, 1, 21],
}
SEGMENTS = [(12, 3, 40), (20, 3, 60), (20, 5, 30)]


def made(**options):
    task = MQAR(**{**FEW, **options})
    task.prepare()
    return task


def segments(*listed):
    return [RowSegment(length=n, pairs=p, examples=examples) for n, p, examples in listed]


def solved(task, row):
    """Read the context from left to right into a dictionary, then answer each queried key."""
    key = 2 if task.grid else 1
    end = (key + 1) * (task.pairs + task.updates) * task.passes
    known = {}
    for start in range(0, end, key + 1):
        known[tuple(row[start : start + key])] = row[start + key]
    assert len(known) == task.pairs
    assert len({*known.values()}) == task.pairs
    return known, {
        place + key - 1: known[tuple(row[place : place + key])]
        for place in range(end, len(row) - key + 1, key + 1)
        if tuple(row[place : place + key]) in known
    }


@pytest.mark.parametrize("name", FORMS)
def test_a_literal_solver_finds_every_answer(name):
    task = made(**FORMS[name])
    queries = task.queries or task.pairs
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, _ = task.rows(split)
        assert tokens.shape == (number, task.length)
        assert tokens.min() >= 0
        assert tokens.max() < task.vocabulary
        for row, asked in zip(tokens.tolist(), answers.tolist(), strict=True):
            said = {place: answer for place, answer in enumerate(asked) if answer != NOT_ASKED}
            _, found = solved(task, row)
            assert len(said) == queries
            assert len({*said.values()}) == queries
            assert said == {place: found[place] for place in said}
    assert [finding for finding in check_task(task) if not finding.passed] == []


@pytest.mark.parametrize("name", PINNED)
def test_the_same_rows_for_ever(name):
    row = made(**FORMS[name]).rows("train").tokens[0].tolist()
    assert row[: len(PINNED[name])] == PINNED[name]


def test_defaults_have_the_rows_and_the_identity_of_before():
    assert MQAR().spec.data_hash == "8e5bd5ddf9bc7ac6"
    assert MQAR(order="listed").spec.data_hash == MQAR().spec.data_hash
    hashes = {MQAR(**options).spec.data_hash for options in FORMS.values()}
    assert len(hashes) == len(FORMS)


def test_new_values_differ_from_all_others_and_updated_keys_are_anywhere():
    task = made(**FORMS["updates"], test_examples=2000)
    tokens = task.rows("test").tokens
    values = tokens[:, 1:14:2]
    assert all(len({*row}) == 7 for row in values.tolist())
    places = (tokens[:, 10:14:2, None] == tokens[:, None, :10:2]).argmax(2)
    assert np.abs(np.bincount(places.ravel()) / 800 - 1).max() < 0.15
    floors = {floor.name: floor.accuracy for floor in task.baselines("test")}
    assert floors["first_value"] == pytest.approx(1 - 2 / 5)
    assert floors["last_value"] == pytest.approx(1 / 5)


def test_no_token_of_a_key_in_a_grid_decides_alone():
    task = made(**FORMS["grid"], test_examples=2000)
    tokens, answers, _ = task.rows("test")
    for number in (0, 1):
        halves = np.sort(tokens[:, number : 3 * 9 : 3], axis=1)
        assert all(np.unique(row, return_counts=True)[1].tolist() == [3] * 3 for row in halves)
        assert 1 + 13 * number <= halves.min() <= halves.max() < 1 + 13 * (number + 1)
    floors = {floor.name: floor.accuracy for floor in task.baselines("test")}
    assert floors["half_key"] == pytest.approx(1 / 3)  # one cell of each column has its last value
    assert floors["last_value"] == pytest.approx(1 / 9)
    assert task.describe("test", 0).split()[:6:3] == [
        f"a{tokens[0, 0]}", f"a{tokens[0, 3]}",
    ]  # fmt: skip
    assert (answers != NOT_ASKED).sum(1).tolist() == [9] * 2000


def test_one_query_asks_any_pair():
    task = made(**FORMS["one query"], train_examples=4000)
    tokens, answers, _ = task.rows("train")
    place = (answers != NOT_ASKED).argmax(1)
    keys = tokens[np.arange(4000), place]
    pairs = (tokens[:, :24:2] == keys[:, None]).argmax(1)
    assert np.abs(np.bincount(pairs) * 12 / 4000 - 1).max() < 0.2


def test_segments_have_the_rows_of_their_tasks_and_batches_of_one_kind():
    task = made(
        vocabulary=40, segments=segments(*SEGMENTS), validation_examples=20, test_examples=10
    )
    assert task.spec.sizes == {"train": 130, "validation": 60, "test": 30}
    assert task.spec.max_length == 20
    assert [finding for finding in check_task(task) if not finding.passed] == []
    first = 0
    for length, pairs, examples in SEGMENTS:
        alone = MQAR(vocabulary=40, length=length, pairs=pairs)
        for row in zip(*task.rows("train", first, first + examples), strict=True):
            tokens, answers, size = row
            assert size == length
            known, found = solved(alone, tokens[:length].tolist())
            assert len(known) == pairs
            asked = np.flatnonzero(answers[:length] != NOT_ASKED).tolist()
            assert {place: int(answers[place]) for place in asked} == {p: found[p] for p in asked}
        first += examples
    kinds = [kind_of(batch) for batch in task.batches("train", batch_size=10, seed=4)]
    assert sorted(kinds) == [(12, 3)] * 4 + [(20, 3)] * 6 + [(20, 5)] * 3
    assert kinds != sorted(kinds)
    seen = {int(i) for b in task.batches("train", batch_size=10, seed=4) for i in b.index}
    assert seen == {*range(130)}
    listed = made(vocabulary=40, segments=segments(*SEGMENTS), order="listed")
    kinds = [kind_of(batch) for batch in listed.batches("train", batch_size=10, seed=4)]
    assert kinds == sorted(kinds)


def kind_of(batch):
    """Return length and number of queries of a batch, which has no padding."""
    assert batch.keep is None
    assert (batch.tokens > 0).all()  # ids are 1 larger, since rows have several lengths
    (queries,) = {*(batch.weight > 0).sum(1).tolist()}
    return batch.tokens.shape[-1], queries


def test_ranks_and_later_batches_have_the_same_epoch():
    task = made(vocabulary=40, segments=segments(*SEGMENTS))
    whole = list(task.batches("train", batch_size=10, seed=1))
    later = task.batches("train", batch_size=10, seed=1, start=5)
    assert fingerprint(later) == fingerprint(whole[5:])
    for rank in (0, 1):
        parts = list(task.batches("train", batch_size=5, seed=1, rank=rank, ranks=2))
        assert len(parts) == len(whole)
        for part, batch in zip(parts, whole, strict=True):
            assert torch.equal(part.index, batch.index[rank::2])


def test_test_segments_decide_validation_and_test_and_scores_have_their_names():
    task = made(
        vocabulary=40, length=12, pairs=3, train_examples=50,
        test_segments=segments((12, 3, 20), (30, 3, 15), (30, 7, 10)),
    )  # fmt: skip
    assert task.spec.sizes == {"train": 50, "validation": 45, "test": 45}
    assert task.spec.source == (
        "generated, 12x3, 30x3, 30x7 (length x pairs) of 40 tokens, trained at 12x3"
    )
    counts = {}
    for batch in task.batches("test", batch_size=8, seed=0):
        hit = torch.ones(batch.target.shape) * (batch.tokens.shape[-1] == 12)
        found = task.tally(torch.ones(batch.target.shape), hit > 0, batch)
        for part, (hits, number) in found.groups.items():
            before = counts.get(part, (0, 0))
            counts[part] = (before[0] + hits, before[1] + number)
    assert counts == {
        ("segment", "12x3"): (60, 60), ("segment", "30x3"): (0, 45), ("segment", "30x7"): (0, 70),
        ("length", "12"): (60, 60), ("length", "30"): (0, 115),
    }  # fmt: skip
    floors = {floor.name: floor.accuracy for floor in task.baselines("test")}
    assert floors["last_value"] == pytest.approx(45 / 175)
    rows = [r.tobytes() for s in ("train", "validation", "test") for r in task.rows(s).tokens]
    assert len({*rows}) == len(rows)


def test_one_length_needs_no_padding_id():
    task = made(vocabulary=40, segments=segments((20, 3, 60), (20, 5, 30)))
    assert (task.spec.padded, task.spec.vocabulary) == (False, 40)
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_segments_from_the_command_line():
    words = ["task=mqar", "task.segments=[{length: 16, pairs: 2, examples: 64}]", "logger=none"]
    (entry,) = entries([*words, "task.test_segments=[{length: 32, pairs: 4, examples: 8}]"])
    task = typed(entry.config).task
    assert task.spec.sizes == {"train": 64, "validation": 8, "test": 8}
    assert task.segments == segments((16, 2, 64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 8}, r"task\.length must be at least 72, .* 4 values in each of 8 passes"),
        ({"passes": 0}, r"must be at least 1: got task\.passes=0"),
        ({"updates": 5}, r"task\.updates must be at most task\.pairs=4: got 5"),
        ({"queries": 5}, r"task\.queries must be at most task\.pairs=4: got 5"),
        ({"grid": 1}, r"task\.grid=1 has 1 keys, and a row needs task\.pairs=4"),
        ({"grid": 2, "vocabulary": 8}, r"4 for values: task\.vocabulary=8 has 2 and 3"),
        ({"updates": 3, "vocabulary": 10}, r"must be at least 14 for .*updates=3: got 10"),
        ({"segments": []}, r"task\.segments must list segments"),
        ({"segments": segments((64, 4, 9), (64, 4, 8))}, r"each length and number of pairs once"),
        ({"segments": segments((64, 4, 9), (16, 8, 9))}, r"segments\[1\]: .* at least 32"),
        ({"segments": segments((64, 4, 9)), "test_length": 80}, r"test_length, or segments"),
        ({"segments": segments((64, 4, 9)), "train_examples": None}, r"does not support"),
        ({"segments": segments((64, 4, 9)), "queries": 1}, r"set task\.queries to null"),
    ],
)
def test_impossible_forms(options, message):
    with pytest.raises(ValueError, match=message):
        MQAR(**options)


def test_a_segment_without_rows_and_one_with_fewer_than_a_batch():
    with pytest.raises(ValueError, match=r"the segment 64x4 needs at least 1 row: got examples=0"):
        RowSegment(length=64, pairs=4, examples=0)
    task = made(vocabulary=40, segments=segments(*SEGMENTS))
    with pytest.raises(ValueError, match=r"segment 20x5 of task=mqar: .* at least 32 training"):
        list(islice(task.batches("train", batch_size=32, seed=0), 1))

"""MAD's tasks: how many positions they ask, their floors and ceilings, and what they refuse."""

import math

import numpy as np
import pytest
from literal_mad import (
    copied_after_one_mark,
    fuzzily_recalled,
    memorised,
    recalled,
    reconstructed,
    runs,
)

from lra.tasks.contract import check_task
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.mad_compression import MadCompression
from lra.tasks.diagnostics.mad_copy import MadCopy
from lra.tasks.diagnostics.mad_fuzzy import MadFuzzy
from lra.tasks.diagnostics.mad_memorisation import MadMemorisation
from lra.tasks.diagnostics.mad_noisy import MadNoisy
from lra.tasks.diagnostics.mad_recall import MadRecall
from lra.tasks.task import Kind

FEW = {"train_examples": 300, "validation_examples": 60, "test_examples": 80}
SMALL = {
    "recall": (MadRecall, recalled, {"length": 31}),
    "noisy": (MadNoisy, recalled, {"length": 41, "vocabulary": 25, "noise": 0.5}),
    "fuzzy": (MadFuzzy, fuzzily_recalled, {"length": 50, "vocabulary": 8}),
    "copy": (MadCopy, copied_after_one_mark, {"length": 30, "items": 5}),
    "memorisation": (MadMemorisation, memorised, {"length": 12, "vocabulary": 64}),
    "compression": (MadCompression, reconstructed, {"length": 12}),
}
PINNED = {
    "recall": [11, 0, 8, 3, 12, 5, 13, 1, 8, 2, 11, 5],
    "noisy": [6, 0, 8, 0, 8, 3, 7, 12, 21, 3, 7, 2],
    "fuzzy": [2, 6, 1, 0, 2, 6, 1, 0, 6, 2, 1, 0],
    "copy": [0, 3, 0, 0, 0, 12, 15, 0, 0, 0, 0, 0],
    "memorisation": [2, 63, 5, 63, 29, 63, 24, 63, 19, 63, 24, 63],
    "compression": [8, 5, 6, 8, 9, 3, 12, 10, 8, 10, 4, 15],
}
"""The last tokens of a training row: another generator is another version."""


def drawn(task, number, split="test"):
    """Return that many rows of the task without preparing it."""
    per_row = task.words(task.length)
    words = random_words(Draw.diagnostic, 77, number * per_row).reshape(number, per_row)
    return task.drawn_for(split, words, task.length)


def prepared(kind, **options):
    task = kind(**options)
    task.prepare()
    return task, {baseline.name: baseline.accuracy for baseline in task.baselines("test")}


@pytest.mark.parametrize("longer", [None, 10])
@pytest.mark.parametrize("name", SMALL)
def test_a_literal_solver_finds_every_answer_of_mad(name, longer):
    kind, solve, options = SMALL[name]
    length = options["length"]
    lengths = {} if longer is None else {"min_length": length - 4, "test_length": length + longer}
    task, baselines = prepared(kind, **FEW, **options, **lengths)
    assert [finding for finding in check_task(task) if not finding.passed] == []
    assert all(0 <= accuracy <= 1 for accuracy in baselines.values())
    for split in FEW:
        tokens, answers, sizes = task.rows(split.removesuffix("_examples"))
        ends = [tokens.shape[1]] * len(tokens) if sizes is None else sizes.tolist()
        for row, asked, end in zip(tokens.tolist(), answers.tolist(), ends, strict=True):
            said = {place: answer for place, answer in enumerate(asked) if answer != NOT_ASKED}
            assert said == solve(task, row[:end])
    if longer is None:
        assert task.rows("train").tokens[0, -12:].tolist() == PINNED[name]
    assert task.stretched(2.0)["test_length"] in (2 * length, 2 * length + 1)
    assert kind(**options, **task.stretched(2.0)).max_length >= 2 * length


@pytest.mark.parametrize(
    ("task", "wanted"),
    [
        (MadRecall(), 56.0),
        (MadRecall(vocabulary=128), 23.7),
        (MadNoisy(), 43.6),
        (MadNoisy(noise=0.4), 31.1),
        (MadNoisy(noise=0.6), 19.2),
        # Means of 4,000, 1,500, 400 and 300 rows of the released generator.
        (MadNoisy(noise=0.8), 7.92),
        (MadFuzzy(), 4.37),
        (MadFuzzy(vocabulary=32), 2.18),
        (MadFuzzy(length=1024), 147.0),
    ],
)
def test_as_many_positions_are_asked_as_in_mad(task, wanted):
    asked = (drawn(task, 3000 if task.length < 1000 else 600).answers != NOT_ASKED).sum(1)
    assert asked.min() >= 1
    error = asked.std() * (len(asked) ** -0.5 + 1500**-0.5)
    assert abs(asked.mean() - wanted) < 0.05 + 3 * error


@pytest.mark.parametrize("vocabulary", [16, 128])
def test_the_number_of_repeated_keys_is_the_expected_one(vocabulary):
    """Slot i of 63 repeats a key with probability 1 - (1 - 1/K)^i; the last slot always does."""
    asked = (drawn(MadRecall(vocabulary=vocabulary), 5000).answers != NOT_ASKED).sum(1)
    unseen = 1 - 2 / vocabulary
    expected = 1 + sum(1 - unseen**i for i in range(63))
    assert abs(asked.mean() - expected) < 4 * asked.std() / math.sqrt(5000)


def test_noise_comes_in_slots_of_two_and_one_slot_is_spared():
    task = MadNoisy(noise=0.6)
    tokens, _, _ = drawn(task, 4000)
    is_noise = tokens >= 16
    assert np.array_equal(is_noise[:, :-1:2], is_noise[:, 1::2])
    assert not is_noise[:, -1].any()
    # Of 64 slots, one is never noise; of the 63 before the last, it is so with 63/64.
    assert abs(is_noise[:, :-1].mean() - 0.6 * (1 - 1 / 64)) < 0.01
    assert set(np.unique(tokens[is_noise])) == set(range(16, 32))
    few, answers, _ = drawn(MadNoisy(noise=0.99, length=7), 500)
    assert (few[:, :6:2] < 8).any(axis=1).all()  # a key before the last one
    assert (answers[:, -1] != NOT_ASKED).all()


def test_the_last_key_is_any_of_those_seen():
    tokens, _, _ = drawn(MadRecall(vocabulary=4, length=7), 4000)
    both = np.array([len({0, 1} & set(row[:6:2])) == 2 for row in tokens.tolist()])
    assert both.mean() == pytest.approx(0.75, abs=0.03)
    assert (tokens[both, -1] == 0).mean() == pytest.approx(0.5, abs=0.03)
    assert (tokens[~both, -1] == tokens[~both, 0]).all()


@pytest.mark.parametrize(("split", "shortest"), [("train", 1), ("validation", 3), ("test", 3)])
def test_fuzzy_keys_have_the_sizes_of_their_split(split, shortest):
    task = MadFuzzy(vocabulary=31)  # 15 keys, 15 values, so that few pairs repeat
    tokens, answers, _ = drawn(task, 1500, split)
    # The sizes of the pair at the end decide how many pairs fit, so all but it are counted.
    pairs = [[*runs(task, row)][:-3] for row in tokens.tolist()]
    for is_key, least in ((True, shortest), (False, 1)):
        sizes = [len(part) for row in pairs for which, _, part in row if which == is_key]
        assert {*sizes} == {*range(least, 4)}
        share = np.bincount(sizes)[least:] / len(sizes)
        assert np.abs(share * (4 - least) - 1).max() < 0.08
    assert (tokens[:, 0] == 30).all()
    assert ((tokens == 30).sum(1) < 15).all()
    assert (answers[:, -1] != NOT_ASKED).all()


def test_the_pair_of_the_end_stands_anywhere_before():
    task = MadFuzzy(vocabulary=63)
    places = []
    for row in drawn(task, 2000).tokens.tolist():
        keys = [(place, tokens) for is_key, place, tokens in runs(task, row) if is_key]
        assert keys[-1][1] in [tokens for _, tokens in keys[:-1]]
        start = next(place for place, token in enumerate(row) if token != 62)
        places.append(next(p for p, tokens in keys if tokens == keys[-1][1]) - start)
    share = np.bincount(np.array(places) // 20, minlength=6)[:5] / 2000
    # Uniform below 116 to 120, and a pair more than the place that was drawn.
    assert np.abs(share[1:] - 20 / 118).max() < 0.035
    assert share[0] < 20 / 118


def test_floors_of_recall():
    _, floors = prepared(MadRecall)
    assert floors["majority"] == pytest.approx(0.134, abs=0.012)
    assert floors["last_value"] == pytest.approx(0.240, abs=0.012)
    _, floors = prepared(MadRecall, vocabulary=128)
    assert floors["majority"] == pytest.approx(0.020, abs=0.008)
    assert floors["last_value"] == pytest.approx(0.059, abs=0.012)
    lows = [prepared(MadNoisy, noise=noise)[1]["last_value"] for noise in (0.2, 0.8)]
    assert lows == pytest.approx([0.245, 0.313], abs=0.02)


def test_the_last_value_of_fuzzy_recall_is_that_of_the_pair_before():
    task, floors = prepared(MadFuzzy, train_examples=500, test_examples=300)
    right = total = 0
    for row, asked in zip(*(part.tolist() for part in task.rows("test")[:2]), strict=True):
        values = [(place, tokens) for is_key, place, tokens in runs(task, row) if not is_key]
        for place in range(len(row)):
            if asked[place] == NOT_ASKED:
                continue
            before = [value for value in values if value[0] <= place]
            here = 0
            if row[place] >= task.keys:  # inside a value, so the one before that counts
                here = place - before.pop()[0] + 1
            tokens = before[-1][1]
            right += tokens[min(here, len(tokens) - 1)] == asked[place]
            total += 1
    assert floors["last_value"] == pytest.approx(right / total)


def test_floors_of_copying_and_compression():
    _, floors = prepared(MadCopy)
    assert floors["last_symbol"] == pytest.approx(1 / 16 + 15 / 16 / 14, abs=0.01)
    assert floors["majority"] == pytest.approx(1 / 14, abs=0.01)
    task, floors = prepared(MadCompression)
    assert task.spec.kind is Kind.reconstruction
    assert floors["majority"] == pytest.approx(31 / 32 / 15, abs=0.005)
    assert floors["last_position"] == pytest.approx((1 + 31 / 15) / 32, abs=0.005)


@pytest.mark.parametrize(
    ("vocabulary", "percent"),
    [(256, 100), (512, 100), (1024, 100), (2048, 98.2), (4096, 86.5), (8192, 63.2)],
)
def test_the_ceiling_of_memorisation(vocabulary, percent):
    task, scores = prepared(MadMemorisation, vocabulary=vocabulary)
    assert scores["ceiling_seen_keys"] == pytest.approx(percent / 100, abs=0.015)
    assert scores["majority"] < 0.02
    assert len(set(task.values.tolist())) == task.keys
    assert task.values.min() >= task.keys
    assert task.values.max() < vocabulary - 1


def test_another_seed_is_another_map():
    first, second = MadMemorisation(), MadMemorisation(data_seed=1)
    assert np.array_equal(first.values, MadMemorisation(train_examples=9).values)
    assert (first.values == second.values).mean() < 0.1


def test_blanks_stand_before_symbols_drawn_anew():
    task = MadCopy(length=40, items=4)
    tokens, _, _ = drawn(task, 3000)
    assert (tokens[:, 34] > 0).all()  # a symbol is next to the copy token, at 35
    assert (tokens[:, 35] == 15).all()
    gaps = np.diff(np.argwhere(tokens[:, :35])[:, 1].reshape(-1, 4), axis=1, prepend=-1) - 1
    assert np.abs(gaps.mean(axis=0) - 31 / 4).max() < 0.2
    assert gaps.var(axis=0) == pytest.approx(31 * 3 / 16, rel=0.1)  # multinomial


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MadRecall(length=128), r"lengths must be odd, .* got 128; wanted 127 or 129"),
        (lambda: MadRecall(test_length=64), r"must be odd, .* got 64"),
        (lambda: MadRecall(length=1), r"length must be at least 3"),
        (lambda: MadRecall(vocabulary=1), r"leave at least 2 ids.*got 1, which leaves 1"),
        (lambda: MadNoisy(vocabulary=16), r"got 16, which leaves 0"),
        (lambda: MadNoisy(noise=1.0), r"task\.noise must lie in \[0, 1\): got 1\.0"),
        (lambda: MadNoisy(noise_ids=0), r"at least 1: got task\.noise_ids=0"),
        (lambda: MadFuzzy(vocabulary=6), r"vocabulary must be at least 7, .* got 6"),
        (lambda: MadFuzzy(length=12), r"length must be at least 13"),
        (lambda: MadCopy(length=32), r"at least 33, .* a mark and 16 blanks"),
        (lambda: MadCompression(vocabulary=1), r"vocabulary must be at least 2"),
        (lambda: MadCompression(length=1), r"length must be at least 2"),
        (lambda: MadMemorisation(vocabulary=2), r"vocabulary must be at least 3, .* got 2"),
        (lambda: MadMemorisation(length=31), r"length must be even .* got 31"),
    ],
)
def test_impossible_options_of_mad(make, message):
    with pytest.raises(ValueError, match=message):
        make()

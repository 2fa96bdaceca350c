"""The flip-flop language, compared with a loop that stores one bit."""

import numpy as np
import pytest
from small_diagnostics import FEW

from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.flip_flop import FlipFlop


def made(**options):
    task = FlipFlop(**{**FEW, **options})
    task.prepare()
    return task


def looped(task, row):
    """Return the answers by position, and the number of pairs since the last write."""
    answers, distances, bit, written = {}, {}, None, None
    for place in range(0, len(row), 2):
        operation = task.token_text(row[place])
        if operation == "w":
            bit, written = row[place + 1], place
        elif operation == "r":
            answers[place], distances[place] = bit, (place - written) // 2
            assert row[place + 1] == bit
    return answers, distances


@pytest.mark.parametrize(
    "options", [{}, {"test_ignore": 0.1}, {"ignore": 0.0, "test_ignore": 1.0}, {"length": 10}]
)
def test_a_loop_finds_every_answer_of_flip_flop(options):
    task = made(**options)
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, _ = task.rows(split)
        assert tokens.shape == (number, task.length)
        assert [task.token_text(token) for token in tokens[0, [0, -2]]] == ["w", "r"]
        for row, asked in zip(tokens.tolist(), answers.tolist(), strict=True):
            said = {i: token for i, token in enumerate(asked) if token != NOT_ASKED}
            assert looped(task, row)[0] == said
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_flip_flop_has_the_same_rows_for_ever():
    """Pinned: another generator is another version."""
    task = made(length=24)
    row = "w 0 w 1 i 1 i 0 w 1 i 0 i 0 i 1 i 1 i 0 i 0 r 1"
    above, below = task.describe("train", 0).splitlines()
    assert above.split() == row.split()
    assert below.split() == [*"." * 22, "1", "."]


@pytest.mark.parametrize(
    ("ignore", "last", "asked", "median", "far"),
    [(0.8, 0.601, 26.4, 7, 43), (0.98, 0.507, 3.6, 55, 255), (0.1, 0.95, 115.2, 2, 8)],
)
def test_floors_and_distances_of_flip_flop(ignore, last, asked, median, far):
    """Of 3,000 rows of 512 tokens, as in the specification."""
    task = made(test_ignore=ignore, test_examples=3000)
    rows = task.rows("test")
    counts = (rows.answers != NOT_ASKED).sum(1)
    assert counts.mean() == pytest.approx(asked, abs=4 * counts.std() / np.sqrt(3000))
    floors = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    # Bits of one row depend on each other, so the error is that of the rows.
    assert floors["last_bit"] == pytest.approx(last, abs=4 * 0.5 / np.sqrt(3000 * asked / 4))
    assert floors["majority"] == pytest.approx(0.5, abs=0.02)
    loops = [looped(task, row)[1] for row in rows.tokens[:1000].tolist()]
    distances = [distance for loop in loops for distance in loop.values()]
    assert np.median(distances) == pytest.approx(median, rel=0.12)
    assert np.percentile(distances, 99) == pytest.approx(far, rel=0.12)
    bits = rows.tokens[:, 1]
    assert (bits == bits.min()).mean() == pytest.approx(0.5, abs=0.04)


def test_training_and_test_rows_of_flip_flop_differ_in_what_is_ignored():
    task = made(test_ignore=0.1)
    shares = [(task.rows(split).tokens == 2).mean() * 2 for split in ("train", "test")]
    assert shares == pytest.approx([0.8 * 254 / 256, 0.1 * 254 / 256], abs=0.01)
    assert task.spec.source == "generated, 10% ignored, trained with 80%"
    assert made().spec.data_hash != task.spec.data_hash


def test_groups_of_flip_flop_are_distances():
    task = made(length=64)
    rows = task.rows("test").tokens.tolist()
    for batch in task.batches("test", batch_size=80, seed=0):
        groups = task.groups(batch)["distance"]
        for i, index in enumerate(batch.index.tolist()):
            for place, distance in looped(task, rows[index])[1].items():
                assert groups[i, place] == 2 ** (distance.bit_length() - 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 33}, r"task\.length must be even, .* got 33; wanted 32 or 34"),
        ({"test_length": 33}, r"task\.test_length must be even"),
        ({"length": 2}, r"task\.length must be at least 4"),
        ({"ignore": 1.5}, r"task\.ignore must lie in \[0, 1\]: got 1\.5"),
        ({"test_ignore": -0.1}, r"task\.test_ignore must lie in \[0, 1\]: got -0\.1"),
    ],
)
def test_impossible_sizes_of_flip_flop(options, message):
    with pytest.raises(ValueError, match=message):
        FlipFlop(**options)

"""Copies of strings: rows by a literal reader, the search for one letter, refusals."""

import numpy as np
import pytest

from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.copy_string import CopyString

FEW = {"train_examples": 300, "validation_examples": 60, "test_examples": 40}


def prepared(**options):
    task = CopyString(**{**FEW, **options})
    task.prepare()
    return task


def texts(task, split):
    """Yield the string, what follows the separator, and the answers by position after it."""
    tokens, answers, sizes = task.rows(split)
    sizes = np.full(len(tokens), tokens.shape[1]) if sizes is None else sizes
    for row, said, size in zip(tokens.tolist(), answers.tolist(), sizes.tolist(), strict=True):
        text = "".join(map(task.token_text, row[:size]))
        string, _, copy = text.partition("|")
        asked = {i - len(string): task.token_text(a) for i, a in enumerate(said) if a != NOT_ASKED}
        yield string, copy, asked


@pytest.mark.parametrize("options", [{}, {"min_length": 1, "test_lengths": [3, 21]}])
def test_the_copy_is_asked_letter_by_letter(options):
    task = prepared(**({"length": 12, "min_length": None} | options))
    for split in ("train", "test"):
        for string, copy, asked in texts(task, split):
            assert copy == string[:-1]
            assert asked == dict(enumerate(string))
    assert [finding for finding in check_task(task) if not finding.passed] == []


@pytest.mark.parametrize(("letters", "size"), [(26, 3), (3, 2), (2, 4)])
def test_what_follows_some_letters_is_asked(letters, size):
    task = prepared(
        length=14, min_length=8, lookup="prefix", prefix_letters=size, letters=letters,
        test_lengths=[size + 1, 20],
    )  # fmt: skip
    places = []
    for split in ("train", "test"):
        for string, copy, asked in texts(task, split):
            place = string.index(copy[:size])
            places.append(place)
            rest = string[place + size :]
            assert rest
            assert copy.rstrip("|") == string[place:-1][: len(copy)]
            assert asked == dict(enumerate(rest, size))
    assert {*range(5)} <= {*places}
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_one_letter_finds_the_first_place_alone():
    task = prepared(length=12, min_length=5, letters=4, test_examples=200)
    found = {each.name: each.accuracy for each in task.baselines("test")}
    right = total = 0
    for string, copy, asked in texts(task, "test"):
        for place, answer in asked.items():
            last = ("|" + copy)[place]
            guess = string[0] if last == "|" else (string + "|")[string.index(last) + 1]
            right, total = right + (guess == answer), total + 1
    assert found["one_letter"] == pytest.approx(right / total)
    assert 0.25 < found["one_letter"] < 0.9
    assert found["majority"] == pytest.approx(0.25, abs=0.05)


def test_the_length_of_a_score_is_that_of_the_string():
    task = prepared(length=9, test_lengths=[4, 11])
    batch = next(task.batches("test", batch_size=80, seed=0))
    assert set(task.groups(batch)["length"].flatten().tolist()) == {4, 11}
    assert task.spec.max_length == 22


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"letters": 0}, r"at least 1: got task\.letters=0"),
        ({"prefix_letters": 0}, r"at least 1: got task\.prefix_letters=0"),
        ({"lookup": "prefix"}, r"min_length must be at least 4, .* one letter after them: got 1"),
        ({"lookup": "suffix"}, r"whole"),
        (
            {"lookup": "prefix", "min_length": 4, "test_lengths": [3]},
            r"test_lengths must be at least 4",
        ),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        CopyString(**options)


def test_many_letters_are_numbers():
    task = CopyString(letters=30)
    assert [task.token_text(token) for token in (0, 29, 30)] == ["0", "29", "|"]
    assert CopyString().token_text(25) == "z"

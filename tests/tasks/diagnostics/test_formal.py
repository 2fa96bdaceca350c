"""The task of formal languages: rows, lengths, baselines, refusals."""

import math

import numpy as np
import pytest
import torch
from literal_languages import LITERAL

from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.formal import Formal, RowForm
from lra.tasks.diagnostics.languages.catalogue import NEXT, PLACES, Language

FEW = {"train_examples": 300, "validation_examples": 60, "test_examples": 40}


def prepared(**options):
    task = Formal(**{**FEW, **options})
    task.prepare()
    return task


def questions(task, split):
    """Yield input and answers of each row as symbols, and the positions of the answers."""
    tokens, answers, sizes = task.rows(split)
    sizes = np.full(len(tokens), tokens.shape[1]) if sizes is None else sizes
    for row, said, size in zip(tokens.tolist(), answers.tolist(), sizes.tolist(), strict=True):
        assert said[size:] == [NOT_ASKED] * (len(said) - size)
        inputs = [task.token_text(token) for token in row[:size] if token != task.empty]
        asked = [place for place, answer in enumerate(said) if answer != NOT_ASKED]
        yield inputs, [task.token_text(said[place]) for place in asked], asked


@pytest.mark.parametrize("language", Language)
def test_answers_are_read_at_places_after_the_input(language):
    task = prepared(language=language, length=9, test_lengths=[5, 13])
    for split in ("train", "validation", "test"):
        for inputs, answers, asked in questions(task, split):
            assert answers == LITERAL[language](inputs)
            assert asked == [*range(len(inputs), len(inputs) + len(answers))]
    assert [finding for finding in check_task(task) if not finding.passed] == []
    assert {len(inputs) for inputs, _, _ in questions(task, "test")} == {5, 13}
    lengths = {task.allowed_length(length) for length in range(1, 10)}
    assert {len(inputs) for inputs, _, _ in questions(task, "train")} == lengths


def test_every_language_has_a_name():
    assert {*PLACES} == {*Language} == {*LITERAL}


@pytest.mark.parametrize("language", NEXT)
def test_the_answer_is_the_next_token(language):
    """Tokens of a row as xLSTM counts them: with the answer, and a padding token of brackets."""
    task = prepared(language=language, form="next", length=11, min_length=3, test_lengths=[41])
    behind = {"parity": 0, "modular": 1, "brackets": 1}[language]
    for split in ("train", "test"):
        for inputs, answers, asked in questions(task, split):
            assert answers == LITERAL[language](inputs)
            assert asked == [len(inputs) + behind - 1]
            assert "×" not in inputs or language == "modular"
    besides = {"parity": 1, "modular": 2, "brackets": 3}[language]
    assert {len(inputs) + besides for inputs, _, _ in questions(task, "test")} == {41}
    shortest = min(len(inputs) + besides for inputs, _, _ in questions(task, "train"))
    assert shortest == {"parity": 3, "modular": 3, "brackets": 4}[language]
    assert task.token_text(task.empty - 1) != "=" if behind else True
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_rows_of_one_length_have_no_padding():
    task = prepared(language="stack", min_length=None, length=6)
    assert not task.spec.padded
    assert task.spec.max_length == task.rows("train").tokens.shape[1] == 13
    assert task.spec.vocabulary == 7
    question, answers = task.describe("test", 0).split("\n")
    assert question.split()[6:] == ["_"] * 7
    assert [answer for answer in answers.split() if answer != "."][-1] == "end"


def test_scores_are_told_by_the_length_of_the_input():
    for options in (
        {"language": "duplicate"},
        {"language": "addition"},
        {"language": "parity", "form": "next"},
        {"language": "brackets", "form": "next"},
    ):
        task = prepared(**options, length=9, test_lengths=[5, 13])
        batch = next(task.batches("test", batch_size=80, seed=0))
        hit = torch.ones(batch.target.shape, dtype=torch.bool)
        found = task.tally(torch.ones(batch.target.shape), hit, batch)
        asked = [len(answers) for _, answers, _ in questions(task, "test")]
        assert set(found.groups) == {("length", "5"), ("length", "13")}
        assert found.groups["length", "5"][1] == sum(asked[:40])
        assert found.groups["length", "13"][1] == sum(asked[40:])
    assert prepared(min_length=None).groups(batch) == {}


def test_new_rows_are_right_as_well():
    task = prepared(language="modular", train_examples=None)
    batch = next(task.batches("train", batch_size=64, seed=1))
    for tokens, target, weight in zip(
        batch.tokens[:, 0].tolist(), batch.target.tolist(), batch.weight.tolist(), strict=True
    ):
        inputs = [task.token_text(t - 1) for t in tokens if t and t - 1 != task.empty]
        (asked,) = [place for place, each in enumerate(weight) if each]
        assert [task.token_text(target[asked] - 1)] == LITERAL["modular"](inputs)


BASELINES = {
    ("even_pairs", 40): {"two_tokens": 1.0, "majority": 0.5},
    ("modular", 9): {"last_three": 0.218},
    ("modular", 39): {"last_three": 0.2},
    ("cycle", 40): {"majority": 0.2},
    ("brackets", 9): {"majority": 0.258},
    ("brackets", 101): {"majority": 0.302},
    ("stack", 40): {"end": 0.036},
    ("addition", 40): {"majority": 0.5},
    ("sqrt", 40): {"majority": 0.525},
    ("bucket_sort", 41): {"place": 0.78},
    ("bucket_sort", 491): {"place": 0.936},
}


@pytest.mark.parametrize(("language", "length"), BASELINES)
def test_baselines_have_the_accuracy_that_they_must_have(language, length):
    sizes = {"train_examples": 8000, "validation_examples": 1, "test_examples": 4000}
    if length > 100:
        sizes |= {"train_examples": 2000, "test_examples": 2000}
    task = prepared(language=language, length=length, min_length=None, **sizes)
    found = {each.name: each.accuracy for each in task.baselines("test")}
    answers = sizes["test_examples"] * (1 if PLACES[language].places(length) == 1 else 16)
    for name, wanted in BASELINES[language, length].items():
        assert found[name] == pytest.approx(wanted, abs=0.004 + 2.5 * math.sqrt(0.2 / answers))


def test_a_place_alone_sorts_most_of_long_inputs():
    """The published scores are means over lengths of 41 to 500."""
    task = prepared(
        language="bucket_sort", length=40, test_lengths=[*range(41, 501, 9)], test_examples=20
    )
    batch_hits = []
    (place,) = [each for each in task.baselines("test") if each.name == "place"]
    for rows in (task.rows("test", first, first + 20) for first in range(0, 52 * 20, 20)):
        asked = rows.answers != NOT_ASKED
        number = asked.sum(1, keepdims=True)
        guess = 5 * (2 * (asked.cumsum(1) - 1) + 1) // (2 * number)
        batch_hits.append((guess == rows.answers)[asked].mean())
    assert np.mean(batch_hits) == pytest.approx(0.901, abs=0.005)
    assert place.accuracy > np.mean(batch_hits)


def test_baselines_of_rows_of_several_lengths_read_each_row_to_its_end():
    task = prepared(language="even_pairs", length=9, test_lengths=[3, 12])
    assert {each.name: each.accuracy for each in task.baselines("test")}["two_tokens"] == 1
    task = prepared(language="modular", form="next", length=11, train_examples=4000)
    found = {each.name: each.accuracy for each in task.baselines("train")}
    assert found["last_three"] > 0.3  # inputs of at most three tokens are looked up
    assert found["last_three"] < 0.6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "next", "language": "stack"}, r"parity, modular, brackets: got .*stack; choose"),
        ({"length": 0}, r"min_length must be from 1 to task\.length=0"),
        ({"min_length": 50}, r"min_length must be from 1 to task\.length=40"),
        ({"language": "prime"}, r"language"),
        ({"test_lengths": [5, 0]}, r"lengths of at least 1"),
        ({"validation_examples": 0}, r"at least 1: got task\.validation_examples=0"),
    ],
)
def test_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        Formal(**options)


def test_the_spec_names_language_form_and_chance():
    task = Formal(language="missing_duplicate")
    assert task.spec.source == (
        "generated, missing duplicate, lengths from 2 on, trained at 1 to 40, "
        "new rows in each batch"
    )
    assert task.spec.chance == 0.5
    assert task.spec.scores == {"exact_match", "scaled_accuracy"}
    task = Formal(language="brackets", form=RowForm.next, length=40, min_length=3)
    assert task.spec.source.startswith("generated, brackets, next tokens, trained at 3 to 40")
    assert task.spec.chance == 0.2


def test_two_lengths_with_the_same_next_one_are_one():
    task = Formal(
        language="modular", length=9, test_lengths=[4, 5, 9], train_examples=50,
        validation_examples=20, test_examples=41,
    )  # fmt: skip
    task.prepare()
    assert task.spec.sizes["test"] == len(task.rows("test").tokens) == 2 * 41
    assert [finding for finding in check_task(task) if not finding.passed] == []

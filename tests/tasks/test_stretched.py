"""Longer and shorter test examples are those that the task makes at that length anyway."""

import numpy as np
import pytest

from lra.composition.lookup import named_task
from lra.tasks.classification.listops import task as listops
from lra.tasks.classification.listops.task import ListOps
from lra.tasks.language.base import Regime
from lra.tasks.language.characters import CharacterCorpus, Characters, CharacterSource
from lra.tasks.task import Stretches
from tests.tasks.diagnostics.small_diagnostics import TASKS, made


@pytest.mark.parametrize("name", sorted(TASKS))
def test_diagnostics_keep_their_difficulty_and_drop_training_rows(name) -> None:
    task = made(name)
    assert isinstance(task, Stretches)
    assert task.stretched(1.0) == {}
    for factor in (2.0, 3.0):
        options = task.stretched(factor)
        longer = made(name, **options)
        whole = made(name, test_length=longer.tested_length)
        assert longer.tested_length == round(factor * task.trained_length)
        assert longer.options == task.options
        assert longer.sizes["train"] == 1
        np.testing.assert_array_equal(longer.rows("test").tokens, whole.rows("test").tokens)
        np.testing.assert_array_equal(longer.rows("test").answers, whole.rows("test").answers)


def test_a_task_that_is_tested_long_already_is_left_as_it_is() -> None:
    task = made("induction", test_length=60)
    assert task.stretched(3.0) == {}
    # back at the training length, rows must not be those of train: it is made whole
    assert task.stretched(1.0) == {"test_length": 20}


def test_lengths_are_even_where_the_task_needs_that() -> None:
    assert made("duplicate", length=26).stretched(0.25) == {
        "test_length": 6, "train_examples": 1, "validation_examples": 1,
    }  # fmt: skip


def text(**options):
    task = Characters(
        **{
            "corpus": CharacterCorpus.text8,
            "source": CharacterSource.sample,
            "length": 20,
            **options,
        }
    )
    task.prepare()
    return task


def test_language_tasks_change_the_window_alone() -> None:
    task = text()
    assert task.stretched(1.0) == {}
    assert task.stretched(2.0) == {"evaluation_length": 40}
    assert text(evaluation_length=40).stretched(2.0) == {}
    assert text(evaluation_length=40).stretched(1.0) == {"evaluation_length": 20}
    assert text(**task.stretched(2.0)).folder == task.folder
    assert task.equal_work(10, 2.0) == 5
    assert task.equal_work(10, 0.5) == 20
    assert task.equal_work(10, 100.0) == 1
    sliding = text(regime=Regime.sliding, stride=5)
    assert sliding.equal_work(10, 2.0) == 10


def test_with_a_memory_the_window_says_nothing() -> None:
    with pytest.raises(ValueError, match="a model also reads a state of 8 tokens"):
        text(regime=Regime.memory, memory=8).stretched(2.0)


def test_longer_trees_are_right_and_new() -> None:
    options = {"min_length": 10, "max_length": 60, "max_depth": 5, "train_examples": 50,
               "validation_examples": 20, "test_examples": 30}  # fmt: skip
    task = ListOps(**options)
    task.prepare()
    changed = task.stretched(2.0)
    longer = ListOps(**{**options, **changed})
    longer.prepare()
    lengths = longer.lengths("test")
    assert len(lengths) == 30
    assert lengths.min() > 20
    assert 60 < lengths.max() < 120
    assert (longer.trained_length, task.trained_length) == (120, 60)
    # evaluated again by another program
    for index in range(30):
        tree, answer = longer.describe("test", index).split("\n-> ")
        assert evaluated(tree.split()) == int(answer)
    assert task.stretched(1.0) == {}
    with pytest.raises(ValueError, match=r"got source=sample; set task\.source=generated"):
        ListOps(source=listops.ListOpsSource.sample).stretched(2.0)


def evaluated(words: list[str]) -> int:
    stack: list[list[int | str]] = [[]]
    for word in words:
        if word.startswith("["):
            stack.append([word.strip("[")])
        elif word == "]":
            name, *given = stack.pop()
            numbers = sorted(int(n) for n in given)
            middle = (numbers[(len(numbers) - 1) // 2] + numbers[len(numbers) // 2]) // 2
            found = {"MIN": numbers[0], "MAX": numbers[-1], "SM": sum(numbers) % 10, "MED": middle}
            stack[-1].append(found[str(name)])
        else:
            stack[-1].append(int(word))
    return int(stack[0][0])


@pytest.mark.parametrize("name", ["enwik8", "text8", "wikitext2", "wikitext103", "pg19"])
def test_every_language_task_has_the_option_that_is_changed(name) -> None:
    task = named_task(name, ["length=64", "evaluation_length=256"])
    assert (task.trained_length, task.tested_length) == (64, 256)

"""Arithmetic on trees, compared with a recursive evaluation."""

from functools import cache

import numpy as np
import pytest
from small_diagnostics import FEW

from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.modular_tree import UNDEFINED, ModularTree, expressions, values

SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
DIVIDING = {"division": True, "modulus": 7}


def made(**options):
    task = ModularTree(**{**FEW, **options})
    task.prepare()
    return task


def value(texts, modulus):
    """Return the value of an expression, whose texts are removed from the front of the list."""
    first = texts.pop(0).lstrip("'")
    if first not in {*SIGNS, "/"}:
        return int(first)
    left = value(texts, modulus)
    if first == "/":
        right = value(texts, modulus)
        (found,) = (n for n in range(modulus) if (n * right) % modulus == left)  # only one
        return found
    return SIGNS[first](left, value(texts, modulus)) % modulus


@cache
def distribution(operators, modulus):
    """Return the probabilities of the values of random expressions."""
    if operators == 0:
        return np.full(modulus, 1 / modulus)
    total = np.zeros(modulus)
    for left in range(operators):
        parts = distribution(left, modulus), distribution(operators - 1 - left, modulus)
        for a, b in np.ndindex(modulus, modulus):
            for sign in SIGNS.values():
                total[sign(a, b) % modulus] += parts[0][a] * parts[1][b] / operators / len(SIGNS)
    return total


@pytest.mark.parametrize(
    "options",
    [
        {}, {"modulus": 23, "operators": 10}, {"operators": 1}, DIVIDING,
        {"division": True, "modulus": 23, "operators": 10},
        {"division": True, "modulus": 2, "operators": 9},
    ],
)  # fmt: skip
def test_recursion_finds_every_answer_of_modular_tree(options):
    task = made(**options)
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, sizes = task.rows(split)
        assert len(tokens) == number
        seen = set()
        for row, asked, size in zip(tokens.tolist(), answers.tolist(), sizes, strict=True):
            begin, mark, *content, end = (task.token_text(token) for token in row[:size])
            operators = sum(text.lstrip("'") in {*SIGNS, "/"} for text in content)
            assert begin.lstrip("'") == "begin"
            assert mark.lstrip("'") == f"len{operators}"
            assert end.lstrip("'") == f"?{operators}"
            assert asked[size - 1] == value(content, task.modulus)
            assert content == []
            assert {*asked[: size - 1], *asked[size:]} <= {NOT_ASKED}
            seen.add(operators)
        assert seen == ({task.operators} if split == "test" else {*range(1, task.operators + 1)})
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_modular_tree_has_the_same_rows_for_ever():
    """Pinned: another generator is another version."""
    task = made()
    assert task.rows("train").tokens[0].tolist() == [11, 14, 10, 1, 3, 22, 0, 0, 0, 0, 0, 0]
    assert " ".join(task.describe("train", 0).split()) == "begin 'len1 '* 1 3 '?1 . . . . . 3"


def test_division_leaves_the_other_rows_as_they_are():
    assert made().spec.data_hash == made(division=False).spec.data_hash
    assert made().spec.data_hash != made(division=True).spec.data_hash
    task = made(**DIVIDING, train_examples=4000)
    tokens = task.rows("train").tokens - 7
    signs = np.bincount(tokens[(tokens >= 0) & (tokens < 8)] // 2, minlength=4)
    # An operator that divides makes its expression undefined in about 1 of 7 cases.
    assert 0.75 < signs[3] / signs[:3].mean() < 0.95
    words = np.random.default_rng(2).integers(0, 2**64, (300, task.words(task.length)), np.uint64)
    once, again = (task.drawn_for("train", words[part], task.length) for part in (slice(None), [7]))
    assert once.tokens[7].tolist() == again.tokens[0].tolist()  # whatever rows are drawn with it


def test_an_undefined_quotient_is_found_wherever_it_stands():
    plus, over = 7, 13  # the first forms, modulo 7
    for content, result in (
        ([over, 3, 5], 2),  # 2 * 5 = 10 = 3
        ([over, 3, 0], UNDEFINED),
        ([over, 0, 3], 0),
        ([plus, 1, over, 2, plus, 3, 4], UNDEFINED),
        ([over, 6, over, 0, 2], UNDEFINED),
    ):
        row = np.array([[*content, *[0] * (9 - len(content))]])
        assert values(row, 7).tolist() == [result], content


def test_left_parts_of_modular_tree_are_uniform():
    words = np.random.default_rng(0).integers(0, 2**64, (6000, 9), np.uint64)
    tokens = expressions(words, np.full(6000, 4), 5)
    sizes = []
    for row in tokens.tolist():
        need = place = 1
        while need:
            need += 1 if row[place] >= 5 else -1
            place += 1
        sizes.append((place - 2) // 2)
    assert np.abs(np.bincount(sizes) / 1500 - 1).max() < 0.1
    forms = np.bincount(tokens[tokens >= 5] - 5)
    assert np.abs(forms / 4000 - 1).max() < 0.1
    assert len(forms) == 6


@pytest.mark.parametrize(
    ("operators", "zero", "first"), [(1, 0.057, 0.057), (4, 0.066, 0.053), (10, 0.070, 0.049)]
)
def test_floors_of_modular_tree_at_the_published_modulus(operators, zero, first):
    """The share of zeros follows exactly from the shares of smaller expressions."""
    exact = distribution(operators, 23)
    assert exact.argmax() == 0
    assert exact[0] == pytest.approx(zero, abs=0.0006)
    words = np.random.default_rng(1).integers(0, 2**64, (40_000, 2 * operators + 1), np.uint64)
    tokens = expressions(words, np.full(40_000, operators), 23)
    found = np.bincount(values(tokens, 23), minlength=23) / 40_000
    assert np.abs(found - exact).max() < 4.5 * np.sqrt(exact[0] / 40_000)
    numbers = np.take_along_axis(tokens, (tokens < 23).argmax(1)[:, None], axis=1)[:, 0]
    assert (numbers == values(tokens, 23)).mean() == pytest.approx(first, abs=0.004)


def test_baselines_of_modular_tree():
    task = made(train_examples=4000, test_examples=4000)
    floors = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert [*floors] == ["majority", "last_token", "first_number"]
    zero = distribution(4, 5)[0]
    assert floors["majority"] == pytest.approx(zero, abs=4 * np.sqrt(zero / 4000))
    tokens, answers, _ = task.rows("test")
    firsts = [next(token for token in row[2:] if token < 5) for row in tokens.tolist()]
    assert floors["first_number"] == (np.array(firsts) == answers.max(1)).mean()


def test_groups_of_modular_tree_count_operators():
    task = made()
    for batch in task.batches("validation", batch_size=60, seed=0):
        groups = task.groups(batch)["operators"]
        assert groups[:, 0].tolist() == [(n - 4) // 2 for n in batch.keep[:, 0].sum(1).tolist()]
        assert (groups == groups[:, :1]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modulus": 1}, r"task\.modulus must be at least 2: got 1"),
        (
            {"division": True, "modulus": 9},
            r"needs a prime task\.modulus.* quotients by 3 are.*: got 9",
        ),
        ({"division": True, "modulus": 2, "operators": 17}, r"divides by zero.*lower task\.oper"),
        ({"operators": 0}, r"must be at least 1: got task\.operators=0"),
    ],
)
def test_impossible_sizes_of_modular_tree(options, message):
    with pytest.raises(ValueError, match=message):
        ModularTree(**options)

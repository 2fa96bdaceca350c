"""The mark of a difference from the best: how often it is wrong, and that it is found."""

import math

import numpy as np

from lra.reports.tables.ranking import DIFFERS, rank_columns
from lra.reports.tables.table import Entry


def column(values: np.ndarray) -> list[list[Entry]]:
    """Return lines of one entry each from models by seeds."""
    return [
        [Entry(text="x", value=float(v.mean()), by_seed=dict(enumerate(map(float, v))))]
        for v in values
    ]


def marked(values: np.ndarray) -> int:
    lines, _ = rank_columns(column(values), 6, higher=True)
    return sum(entry.text.endswith(DIFFERS) for line in lines for entry in line)


def test_equal_models_are_marked_in_one_column_of_twenty_at_most() -> None:
    """Although the best was chosen by the same numbers."""
    rng, trials = np.random.default_rng(5), 600
    wrong = np.mean([marked(rng.normal(0, 1, (5, 4))) > 0 for _ in range(trials)])
    assert wrong < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_other_models_are_marked() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0, 0.1, (4, 6)) + np.array([[3.0], [2.9], [0.0], [0.0]])
    assert marked(values) == 2


def test_models_that_share_one_seed_or_none_are_not_tested() -> None:
    lines = [
        [Entry(text="1", value=1.0, by_seed={0: 1.0, 1: 1.1})],
        [Entry(text="0", value=0.0, by_seed={1: 0.0, 2: 0.1})],
    ]
    found, words = rank_columns(lines, 1, higher=True)
    assert [entry.text for line in found for entry in line] == ["1", "0"]
    assert "Differences are not tested" in words
    assert rank_columns(lines[:1], 1, higher=True) == (lines[:1], "")

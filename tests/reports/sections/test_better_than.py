"""The matrix of a report, and that of a comparison: who is better than whom."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lra
from lra.errors import ConfigError
from lra.reports.rows import prepare
from lra.reports.sections.better_than import better_than

GOOD, LIKE, BAD = (
    [0.90, 0.91, 0.92, 0.93], [0.915, 0.90, 0.93, 0.92], [0.30, 0.315, 0.32, 0.33],
)  # fmt: skip


def rows_of(make: SimpleNamespace, tasks: tuple[str, ...] = ("listops", "text")) -> list[Any]:
    return [
        make.accuracy(model, seed, value + 0.001 * seed * number, task=task)
        for number, task in enumerate(tasks)
        for model, values in (("sdpa", GOOD), ("linear", LIKE), ("local", BAD))
        for seed, value in enumerate(values)
    ]


def test_wins_are_those_of_the_score_tables(make: SimpleNamespace) -> None:
    rows = [*rows_of(make), make.failed("accuracy", "local", "diverged", "nan", seed=4)]
    (part,) = better_than(prepare(make.frame(*rows)))
    found = {row.title: [entry.text for entry in row.entries] for row in part.table.rows}
    assert [column.title for column in part.table.columns][2:] == ["sdpa", "linear", "local"]
    assert found["sdpa"][2:] == ["·", "0 : 0 of 2", "2 : 0 of 2"]
    assert found["local"][2:] == ["0 : 2 of 2", "0 : 2 of 2", "·"]
    assert found["sdpa"][1] == "8 of 8"  # above chance, 10 and 50 %
    assert found["local"][1] == "4 of 9"  # below chance on text, and one run failed
    ranks = [entry.rank for entry in part.table.rows[0].entries[2:]]
    assert ranks == [0, 0, 1]
    value = part.table.rows[0].entries[0].value
    pooled = sorted([*GOOD, *(v + 0.001 * s for s, v in enumerate(GOOD))])
    assert value == pytest.approx(np.mean(pooled[2:-2]))


def test_without_two_shared_seeds_there_is_no_matrix(make: SimpleNamespace) -> None:
    one = [make.accuracy(model, 0, 0.5) for model in ("sdpa", "linear")]
    other = [make.accuracy("sdpa", seed, 0.5 + seed / 9) for seed in (0, 1)]
    other += [make.accuracy("linear", seed, 0.5 + seed / 7) for seed in (2, 3)]
    for rows in (one, other, [make.row("loss", 1.0)]):
        assert not [*better_than(prepare(make.frame(*rows)))]


def test_the_matrix_of_a_comparison_and_its_margin(make: SimpleNamespace) -> None:
    rows = make.frame(*rows_of(make, ("listops",)))
    found = lra.compare(rows, "sdpa", "linear", "local", margin=5)
    matrix = {row.title: row.entries for row in found.matrix.table.rows}
    assert [e.text for e in matrix["sdpa"]] == ["·", "−0.1", "+59.9"]
    assert [e.rank for e in matrix["sdpa"]] == [0, 0, 1]
    assert [e.text for e in matrix["local"]] == ["−59.9", "−60.0", "·"]
    assert "Within ±5, sdpa and linear are equal (two one-sided tests, p = " in found.verdicts[0]
    assert "Equality within ±5 is not shown" in found.verdicts[1]
    (line,) = found.numbers["comparisons"][1]["lines"]
    assert line["improvement"][0] == 1.0
    assert "P(better)" in found.to_markdown()
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match=r"margin: got .*; wanted a number above 0"):
            lra.compare(rows, "sdpa", "linear", margin=wrong)


def test_a_published_number_is_reproduced_or_too_good(make: SimpleNamespace) -> None:
    rows = make.frame(*rows_of(make, ("listops",)))
    words = lra.compare(rows, "sdpa", "published=91", margin=4).verdicts[0]
    assert "sdpa − published=91 at listops: +0.5 [" in words
    assert "Within ±4, the published number is reproduced (two one-sided tests" in words
    words = lra.compare(rows, "sdpa", "published=80", margin=4).verdicts[0]
    assert "sdpa is better than published by more than the margin (one-sided p = " in words
    worse = lra.compare(rows, "sdpa", "published=99", margin=4).verdicts[0]
    assert "suspicious" not in worse
    one = lra.compare(rows[rows["seed"] == 0], "sdpa", "published=91", margin=4).verdicts[0]
    assert "Equivalence within ±4 cannot be tested." in one
    assert "P(better)" not in lra.compare(rows, "sdpa", "published=91").to_markdown()
    with pytest.raises(ConfigError, match="got 'published=high'; wanted published=NUMBER"):
        lra.compare(rows, "sdpa", "published=high")


def test_seeds_that_learn_are_counted_if_others_do_not(make: SimpleNamespace) -> None:
    rows = [make.accuracy("sdpa", s, v) for s, v in enumerate((0.9, 0.1, 0.92))]
    rows += [make.accuracy("linear", s, v) for s, v in enumerate((0.5, 0.52, 0.51))]
    rows.append(make.failed("accuracy", "sdpa", "diverged", "nan", seed=3))
    text = lra.compare(make.frame(*rows), "sdpa", "linear").to_markdown()
    assert "better than the baseline chance are 2 of 4 seeds of sdpa and 3 of 3 seeds of" in text
    assert "0.50 [" in text  # two of four are above all seeds of the other

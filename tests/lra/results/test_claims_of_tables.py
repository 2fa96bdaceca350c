"""`lra report claims`: which ranks of a published table can survive, and what it refuses."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from lra.cli import main
from lra.reports.arena.literature import published_accuracies, published_tables
from lra.reports.comparison.claims import Claims, claims_table, ranked_columns
from lra.reports.statistics.paired_tests import holm
from lra.results.claims import EXAMPLES


def claims(accuracies: dict[str, dict[str, float | None]], spread: float, seeds: int) -> Claims:
    tasks = [*next(iter(accuracies.values()))]
    return Claims(
        name="x", accuracies=accuracies, seeds=seeds, examples={t: EXAMPLES[t] for t in tasks},
        spread=dict.fromkeys(tasks, spread),
    )  # fmt: skip


@pytest.mark.parametrize("seeds", [1, 3])
def test_ranks_of_the_long_range_arena(seeds: int) -> None:
    """By the formulas, with loops over neighbours and pairs."""
    table = published_accuracies("arena")
    found = ranked_columns(claims(table, 0.01, seeds))
    assert [*found] == ["listops", "text", "retrieval", "image", "pathfinder", "mean"]
    names = sorted(table, key=lambda m: -sum(table[m].values()))
    assert list(found["mean"].models) == names
    variance = {
        m: sum(v * (1 - v) / EXAMPLES[t] + 1e-4 / seeds for t, v in table[m].items()) / 25
        for m in names
    }

    def p(a: str, b: str) -> float:
        gap = (sum(table[a].values()) - sum(table[b].values())) / 5
        return 2 * stats.norm.sf(abs(gap) / math.sqrt(variance[a] + variance[b]))

    wanted = [x < 0.05 for x in holm([p(a, b) for a, b in pairwise(names)])]
    assert list(found["mean"].differ) == wanted
    assert wanted[-1]  # local attention is last by 4 points
    assert sum(wanted) < 3
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    differ = {pair for pair, x in zip(pairs, holm([p(*q) for q in pairs]), strict=True) if x < 0.05}
    for index, name in enumerate(names):
        best = 1 + sum((other, name) in differ for other in names[:index])
        worst = len(names) - sum((name, other) in differ for other in names[index + 1 :])
        assert found["mean"].ranges[index] == (best, worst)


def test_a_column_of_equal_models_rarely_has_a_difference_and_ranges_hold_the_truth() -> None:
    """Accuracies are drawn as the formula says: examples are binomial, seeds normal."""
    rng, wrong, outside, trials = np.random.default_rng(0), 0, 0, 400
    truth = np.array([0.60, 0.60, 0.60, 0.65, 0.70])
    for _ in range(trials):
        drawn = truth + 0.01 * rng.normal(size=(3, 5)).mean(axis=0)
        drawn = rng.binomial(2000, drawn) / 2000
        named = {f"m{i}": {"listops": float(v)} for i, v in enumerate(drawn)}
        found = ranked_columns(claims(named, 0.01, 3))["listops"]
        by_name = dict(zip(found.models, found.ranges, strict=True))
        outside += by_name["m4"] != (1, 1) and by_name["m4"][0] != 1
        equal = {m: named[m] for m in ("m0", "m1", "m2")}
        wrong += any(ranked_columns(claims(equal, 0.01, 3))["listops"].differ)
    assert wrong / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    assert outside / trials < 0.05


def test_a_missing_cell_has_a_mark_and_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(
        "model,ListOps,other\nA,60.0 ± 0.4,50\n\nB,40 %,45\nC,,48\nD,FAIL\nE,40.1,44.9\n"
    )
    words = ["report", "claims", str(file), "--seeds", "3", "--examples", "other=10,000"]
    assert main([*words, "--spread", "0.5", "--spread", "other=0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("1 of 2 neighbouring ranks by mean differ significantly at 95 %: A > ")
    assert "| A | **60.00** (1) | **50.00** (1) | **55.00** (1) |" in text
    assert "| C | –¹ | 48.00 (2) | –¹ |" in text
    assert "| D | –¹ | –¹ | –¹ |" in text
    assert (
        "¹ the table has no number here, so the model has no rank in this column and no mean"
        in text
    )
    assert "as a mean of 3 seeds" in text
    assert "ListOps 2,000 and 0.5, other 10,000 and 0." in text


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (
            "model,x\nA,1\nB,2\n",
            [],
            "the number of test examples of x is unknown; add --examples x",
        ),
        ("model,x\nA,1\n", ["--examples", "9"], "no column has two accuracies"),
        ("model,x\n", [], "got 1 rows; wanted a row of titles"),
        ("model,x\nA,abc\n", [], "mine.csv, row 2, x: got 'abc'; wanted an accuracy in percent"),
        ("model,x\nA,101\n", [], "got '101'; wanted an accuracy in percent from 0 to 100"),
        ("model,x\nA,1,2\n", [], "row 2: got 2 numbers after the model; wanted 1"),
        ("model,x\nA,1\nA,2\n", [], "row 3: the model 'A' or a title occurs twice"),
        ("model,x\nA,1\nB,2\n", ["--examples", "y=9"], "unknown column 'y'"),
        ("model,x\nA,1\nB,2\n", ["--examples", "0"], "--examples: got '0'; wanted [COLUMN=]NUMBER"),
        ("model,text\nA,1\nB,2\n", ["--spread", "-1"], "--spread: got '-1'; wanted [COLUMN=]"),
    ],
)
def test_what_is_no_table_is_refused_in_one_sentence(
    content: str, words: list[str], message: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "mine.csv").write_text(content)
    assert main(["report", "claims", str(tmp_path / "mine.csv"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_table_that_does_not_exist_lists_those_that_do(capsys: Any) -> None:
    assert main(["report", "claims", "areno"]) == 2
    said = capsys.readouterr().err
    assert "unknown published table 'areno': did you mean 'arena' or 's4_arena'?" in said


def test_every_published_table_with_two_models_can_be_tested() -> None:
    for name in published_tables():
        table = published_accuracies(name)
        tasks = {task for line in table.values() for task in line}
        found = ranked_columns(claims(table, 0.01, 1)) if tasks else {}
        assert bool(found) == (len(table) > 1 and bool(tasks)), name
        assert not found or claims_table(claims(table, 0.01, 1), found).rows

"""A plain sweep over options is read as a grid: chosen on validation, nothing bold."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.best_on_validation import SAME_SEEDS, best_on_validation
from lra.reports.sections.section import TablePart
from tests.reports.conftest import Report

# by family and rate: validation and test of two seeds; linear's best on test is another one
FOUND = {
    ("linear", "0.001"): ([0.50, 0.54], [0.70, 0.72]),
    ("linear", "0.01"): ([0.60, 0.62], [0.58, 0.60]),
    ("sdpa", "0.001"): ([0.80, 0.82], [0.79, 0.81]),
    ("sdpa", "0.01"): ([0.75, None], [0.90, None]),
}


def rows(make: SimpleNamespace, rates: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    for (family, rate), both in FOUND.items():
        if rate not in rates:
            continue
        options = {"optim.peak_learning_rate": rate} if len(rates) > 1 else {}
        name = f"{family} (optim.peak_learning_rate={rate})" if options else family
        told = {"family": family, "options": options}
        for split, values in zip(("validation", "test"), both, strict=True):
            for seed, value in enumerate(values):
                row = make.accuracy(name, seed, value, labels={"split": split}, **told)
                if value is None:
                    row |= {"status": "diverged", "reason": "loss was nan"}
                yield row


@pytest.fixture
def grid(make: SimpleNamespace) -> pd.DataFrame:
    return make.frame(*rows(make, ("0.001", "0.01")))


def tables(frame: pd.DataFrame) -> list[TablePart]:
    return [part for part in best_on_validation(prepare(frame)) if isinstance(part, TablePart)]


def test_the_setting_is_chosen_on_validation_and_scored_by_its_own_cells(
    grid: pd.DataFrame,
) -> None:
    (part,) = tables(grid)
    linear, sdpa = sorted(part.table.rows, key=lambda row: row.title)
    assert [entry.text for entry in linear.entries[2:]] == ["lr 0.01", "2"]
    assert linear.entries[0].value == pytest.approx(0.59)
    assert linear.entries[1].value == pytest.approx(0.61)
    assert SAME_SEEDS in linear.entries[0].notes
    assert sdpa.entries[2].text == "lr 0.001"


def test_one_setting_of_each_family_is_no_grid(make: SimpleNamespace) -> None:
    assert not tables(make.frame(*rows(make, ("0.001",))))


def test_trainings_that_a_search_led_to_are_not_chosen_again(grid: pd.DataFrame) -> None:
    tuned = grid.assign(labels=[{**labels, "tuned": "x"} for labels in grid["labels"]])
    assert not tables(tuned)


def test_the_table_of_all_settings_stays_without_bold(
    grid: pd.DataFrame, make: SimpleNamespace, report: Report
) -> None:
    files = report(grid)
    assert "lr 0.01" in files["best-on-validation-accuracy.md"].read_text()
    everything = files["accuracy.md"].read_text()
    assert everything.count("optim.peak_learning_rate=") == 4
    assert "**sdpa" not in everything
    assert "**" not in everything.split("\n", 1)[1]
    assert "no ranks" in everything
    alone = report(make.frame(*rows(make, ("0.001",))))["accuracy.md"].read_text()
    assert "**80.0**" in alone
    assert "no ranks" not in alone

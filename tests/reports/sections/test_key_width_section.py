"""Scores against the width of a head, as a table."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.key_width import key_width_rows, key_width_table, key_widths
from lra.reports.tables.scores import ACCURACY
from tests.reports.conftest import Report

FOUND = {(2, 1): (0.2, 0.4), (2, 4): (0.9, 0.9), (8, 1): (0.5, 0.5), (8, 4): (1.0, 1.0)}


def scored(make, found, **more):
    for (heads, width), values in found.items():
        options = {"backbone.heads": str(heads), "backbone.head_width": str(width)}
        name = f"sdpa (heads={heads}, head_width={width})"
        for seed, value in enumerate(values):
            yield make.accuracy(name, seed, value, family="sdpa", options=options, **more)


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    null = {"backbone.heads": "2", "backbone.head_width": "null"}
    rows = [
        *scored(make, FOUND),
        *scored(make, {(4, 2): (0.7, None)}),
        make.accuracy("sdpa (heads=2)", 0, 0.3, family="sdpa", options=null),
        *scored(make, {(4, 2): (0.1,)}, task="mqar"),  # of one width: nothing to compare
    ]
    rows[9] |= {"status": "diverged", "reason": "loss is not finite", "value": None}
    return prepare(make.frame(*rows))


def test_places_are_means_by_heads_and_width(some: pd.DataFrame) -> None:
    table = key_width_table(key_width_rows(some, ACCURACY), ACCURACY)
    assert [column.title for column in table.columns] == ["1", "2", "4"]
    found = {row.title: [entry.value for entry in row.entries] for row in table.rows}
    assert found == {
        "sdpa (heads=2)": [pytest.approx(0.3), None, pytest.approx(0.9)],
        "sdpa (heads=4)": [None, pytest.approx(0.7), None],
        "sdpa (heads=8)": [pytest.approx(0.5), None, pytest.approx(1.0)],
    }


def test_the_report_has_the_table(some: pd.DataFrame, report: Report) -> None:
    names = report(some)
    table = names["key-width-accuracy-table.md"].read_text()
    assert "loss is not finite" in table
    assert [line.split("|")[1].strip() for line in table.splitlines() if "heads=" in line[:25]] == [
        "sdpa (heads=2)", "sdpa (heads=4)", "sdpa (heads=8)",
    ]  # fmt: skip
    plain = some[some["task"] == "mqar"]
    assert not [*key_widths(plain)]

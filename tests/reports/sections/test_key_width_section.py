"""Scores against the width of a head, as data, table and figure."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.key_width import key_width_data, key_width_rows, key_widths
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
    rows = key_width_rows(some, ACCURACY)
    data = key_width_data(rows, ACCURACY)
    assert set(data["model"]) == {f"sdpa (heads={heads})" for heads in (2, 4, 8)}
    means = data.set_index(["heads", "key_width"])["value"].to_dict()
    wanted = {(2, 1): 30.0, (2, 4): 90.0, (4, 2): 70.0, (8, 1): 50.0, (8, 4): 100.0}
    assert means == pytest.approx(wanted)
    low, high = data.loc[(data["heads"] == 2) & (data["key_width"] == 1), ["low", "high"]].iloc[0]
    assert (low, high) == (20.0, 40.0)


def test_the_report_has_table_and_figure(some: pd.DataFrame, report: Report) -> None:
    names = report(some)
    assert {"key-width-accuracy.svg", "key-width-accuracy-table.md"} <= names.keys()
    table = names["key-width-accuracy-table.md"].read_text()
    assert "loss is not finite" in table
    assert [line.split("|")[1].strip() for line in table.splitlines() if "heads=" in line[:25]] == [
        "sdpa (heads=2)", "sdpa (heads=4)", "sdpa (heads=8)",
    ]  # fmt: skip
    plain = some[some["task"] == "mqar"]
    assert not [*key_widths(plain)]

"""Scores at other lengths, as data, table and figure; and that they stand in no other table."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.extrapolation import (
    extrapolation_data,
    extrapolation_rows,
    extrapolation_tables,
)
from lra.reports.tables.scores import score_tables, splits
from tests.reports.conftest import Report

TEXT = {"task": "text8", "source": "files", "length": 128, "causal": True}
RECALL = {"task": "induction", "length": 64, "causal": True}


def rows_at(make, model, factors, *, metric="bits_per_character", seed=0, facts=TEXT):
    rows = []
    for factor, value in factors.items():
        labels = {
            "split": "test",
            "factor": f"{factor:g}",
            "tokens": str(round(factor * facts["length"])),
            "trained_tokens": str(facts["length"]),
            "regime": "non-overlapping",
        }
        if metric == "accuracy":
            labels["windows"] = "200"
        cell = {"runner": "extrapolate", "mode": "extrapolate", "model": model, "seed": seed}
        told = facts | cell | {"labels": labels}
        if value is None:
            rows.append(make.failed(metric, status="unsupported", reason="no place", **told))
        else:
            rows.append(make.row(metric, value, **told))
            rows.append(make.row("loss", value / 2, **told))
            if metric != "accuracy":
                rows.append(make.row("accuracy", 0.5, **told))
    return rows


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    lost = make.failed(
        "accuracy", "performer", "skipped", "its training ended as diverged", runner="extrapolate",
        mode="extrapolate", labels={"split": "test", "regime": "non-overlapping"}, **TEXT,
    )  # fmt: skip
    trained = make.accuracy("softmax", 0, 0.61, labels={"regime": "non-overlapping"}, **TEXT)
    return prepare(
        make.frame(
            *rows_at(make, "softmax", {0.5: 2.2, 1: 2.0, 4: None}),
            *rows_at(make, "linear", {0.5: 2.4, 1: 2.3, 4: 2.5}),
            *rows_at(make, "linear", {0.5: 2.6, 1: 2.5, 4: 2.9}, seed=1),
            *rows_at(make, "linear", {1: 0.9, 2: 0.7}, metric="accuracy", facts=RECALL),
            lost,
            trained,
        )
    )


def test_data_hold_the_tasks_own_score_alone(some: pd.DataFrame) -> None:
    data = extrapolation_data(extrapolation_rows(some))
    chosen = data.drop_duplicates("task").set_index("task")["metric"].to_dict()
    assert chosen == {"induction": "accuracy", "text8": "bits_per_character"}
    text = data[data["task"] == "text8"].set_index(["model", "factor"])
    assert list(text.loc["softmax", "value"])[:2] == [2.2, 2.0]
    assert text.loc[("softmax", 4.0), "status"] == "unsupported"
    assert text.loc[("softmax", 4.0), "reason"] == "no place"
    both = text.loc[("linear", 4.0)]
    assert (both["value"], both["low"], both["high"], both["seeds"]) == (2.7, 2.5, 2.9, 2)
    assert list(text.loc["linear", "tokens"]) == [64, 128, 512]
    assert set(data["trained_tokens"]) == {64, 128}


def test_a_cell_that_failed_is_marked_at_every_length(some: pd.DataFrame) -> None:
    data = extrapolation_data(extrapolation_rows(some))
    lost = data[data["model"] == "performer"]
    assert list(lost["factor"]) == [0.5, 1.0, 4.0]
    assert set(lost["reason"]) == {"its training ended as diverged"}


def test_tables_by_score(some: pd.DataFrame) -> None:
    tables = dict(extrapolation_tables(extrapolation_rows(some)))
    bits, accuracy = tables["bits_per_character"], tables["accuracy"]
    assert [column.title for column in bits.columns] == ["64", "128", "512"]
    by_name = {row.title: [entry.text for entry in row.entries] for row in bits.rows}
    assert by_name == {
        "softmax": ["2.200", "2.000", "unsupported"],
        "linear": ["2.500", "2.400", "2.700"],
        "performer": ["skipped"] * 3,
    }
    assert bits.rows[1].entries[2].interval is not None
    assert [entry.text for entry in accuracy.rows[0].entries] == ["90.0", "70.0"]
    assert "trained at 128 tokens" in bits.caption


def test_scores_at_other_lengths_stand_in_no_other_table(some: pd.DataFrame) -> None:
    assert splits(some) == ["test"]
    (found,) = score_tables(some)
    metric, table = found
    assert metric == "accuracy"
    assert [row.title for row in table.rows] == ["softmax"]
    assert table.rows[0].entries[0].value == 0.61
    assert splits(some[some["runner"] == "extrapolate"]) == []


def test_the_report_has_the_section(some: pd.DataFrame, report: Report) -> None:
    names = report(some)
    assert {"extrapolation.svg", "extrapolation.csv", "extrapolation-accuracy.md"} <= names.keys()
    page = names["report.md"].read_text()
    assert "## Beyond the training length" in page
    assert "(4 times the training length, seed 0)" in page

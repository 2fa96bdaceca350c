"""Losses by context length and relative effective contexts, as data, tables and figure."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.context import (
    context_data,
    context_rows,
    context_tables,
    recl_groups,
    recl_table,
)
from lra.reports.statistics.intervals import mean_interval
from lra.reports.tables.scores import splits
from tests.reports.conftest import Report

CELL = {"runner": "context", "mode": "context", "task": "text8", "source": "files", "causal": True}


def rows_at(make, model, losses, *, seed=0, drawn="aa", regime="non-overlapping", length=128):
    """Rows of one cell: by context the losses of single tokens, or None."""
    rows = []
    for context, samples in losses.items():
        labels = {
            "split": "test", "context": str(context), "targets": "4", "drawn": drawn,
            "context_step": "2", "regime": regime,
        }  # fmt: skip
        told = CELL | {"model": model, "seed": seed, "length": length, "labels": labels}
        if samples is None:
            rows.append(make.failed("loss", status="unsupported", reason="no place", **told))
        else:
            mean = float(np.mean(samples))
            rows.append(make.row("loss", mean, samples=list(samples), **told))
            rows.append(make.row("bits_per_character", mean / np.log(2), **told))
            rows.append(make.row("accuracy", 0.5, **told))
    return rows


LONG = {2: [1.0, 2.0, 3.0, 4.0], 4: [1.0, 1.9, 2.9, 3.5], 6: [1.0, 1.9, 2.9, 3.0]}
SHORT = {2: [1.1, 2.0, 3.0, 4.1], 4: [1.1, 2.0, 3.0, 4.1], 6: [1.1, 2.0, 3.0, 4.1], 8: None}


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    lost = make.failed(
        "loss", "performer", "skipped", "its training diverged", length=128, labels={}, **CELL
    )
    return prepare(
        make.frame(
            *rows_at(make, "softmax", LONG, regime="memory of 64", length=64),
            *rows_at(make, "linear", SHORT),
            *rows_at(make, "linear", LONG, seed=1, drawn="bb"),
            lost,
        )
    )


def test_data_have_the_tasks_score_with_an_interval(some: pd.DataFrame) -> None:
    data = context_data(context_rows(some)).set_index(["model", "context"])
    assert set(data["metric"]) == {"bits_per_character"}
    one = data.loc[("softmax", 4)]
    interval = mean_interval(LONG[4])
    assert one["value"] == pytest.approx(np.mean(LONG[4]) / np.log(2))
    assert (one["low"], one["high"]) == pytest.approx(
        (interval.low / np.log(2), interval.high / np.log(2))
    )
    assert (one["interval"], one["seeds"]) == ("examples", 1)
    both = data.loc[("linear", 6)]
    assert (both["interval"], both["seeds"]) == ("seeds", 2)
    assert data.loc[("linear", 8), "reason"] == "no place"
    assert ("softmax", 8) not in data.index
    assert set(data.loc["performer", "reason"]) == {"its training diverged"}


def test_the_interval_of_a_perplexity_follows_that_of_the_loss(make: SimpleNamespace) -> None:
    rows = rows_at(make, "linear", {2: LONG[2]})
    word = rows[0] | {"metric": "word_perplexity", "value": float(np.exp(2.5 * 1.5)), "unit": "1"}
    (point,) = context_data(context_rows(prepare(make.frame(rows[0], word)))).to_dict("records")
    interval = mean_interval(LONG[2])
    assert point["low"] == pytest.approx(np.exp(1.5 * interval.low))
    assert point["high"] == pytest.approx(np.exp(1.5 * interval.high))


def test_one_name_with_two_regimes_is_two_lines(make: SimpleNamespace) -> None:
    rows = rows_at(make, "linear", LONG) + rows_at(make, "linear", LONG, regime="memory of 8")
    names = set(context_data(context_rows(prepare(make.frame(*rows))))["model"])
    assert names == {"linear, non-overlapping, length 128", "linear, memory of 8, length 128"}


def test_tables_by_context(some: pd.DataFrame) -> None:
    ((metric, table),) = context_tables(context_data(context_rows(some)))
    assert metric == "bits_per_character"
    assert [column.title for column in table.columns] == ["2", "4", "6", "8"]
    texts = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    assert texts["linear"][3] == "unsupported"
    assert texts["softmax"][3] == "–"
    assert texts["performer"] == ["skipped"] * 4


def test_effective_contexts_of_the_group_alone(some: pd.DataFrame) -> None:
    ((key, groups),) = recl_groups(context_rows(some)).items()
    assert key[-1] == 2
    assert {drawn: sorted(group) for drawn, group in groups.items()} == {
        "aa": ["linear", "softmax"], "bb": ["linear"],
    }  # fmt: skip
    table = recl_table(2, groups)
    assert not isinstance(table, str)
    assert "compared models {softmax, linear}" in table.caption
    assert {row.title: [entry.text for entry in row.entries] for row in table.rows} == {
        "softmax": ["≥ 6", "≥ 6", "≥ 6"], "linear": ["2", "2", "2"],
    }  # fmt: skip
    alone = recl_table(2, {"bb": groups["bb"]})
    assert isinstance(alone, str)
    assert "only linear was measured on them" in alone


def test_the_report_has_the_section_and_no_other_table_has_its_scores(
    some: pd.DataFrame, make: SimpleNamespace, report: Report
) -> None:
    assert splits(some) == []
    names = report(some)
    assert {"context.svg", "context-bits-per-character.md", "recl.md"} <= names.keys()
    one = prepare(make.frame(*rows_at(make, "linear", LONG)))
    assert (
        "recl: the relative effective context length (RECL) compares several models"
        in report(one)["report.md"].read_text()
    )

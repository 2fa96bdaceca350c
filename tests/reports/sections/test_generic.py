"""Rows of a runner that reports do not know are a table of its metrics."""

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.generic import generic_table, generic_tables
from lra.reports.statistics.intervals import mean_interval, median_interval
from tests.reports.conftest import Report, failed, frame, row

CELL = {"runner": "mine", "mode": "mine"}


@pytest.fixture
def rows() -> pd.DataFrame:
    found = [
        row("loss", 1.0 + seed / 10 + length / 1000, seed=seed, length=length, **CELL)
        for seed in range(3)
        for length in (128, 256)
    ]
    found += [row("accuracy", 0.5, length=128, labels={"part": p}, **CELL) for p in ("a", "b")]
    found.append(failed("accuracy", "fnet", "out_of_memory", "too big", length=256, **CELL))
    found.append(row("train_loss", 9.0, step=3, length=128, **CELL))
    return prepare(frame(*found))


def test_metrics_by_model_and_length_with_intervals_over_seeds(rows: pd.DataFrame) -> None:
    ((file, heading, table),) = generic_tables(rows, {"mine": ("loss",)})
    assert (file, heading) == ("metrics-mine", "Runner mine")
    assert [column.key for column in table.columns] == ["loss", "accuracy"]
    lines = {(line.section, line.title): line.entries for line in table.rows}
    for length in (128, 256):
        found = lines[f"mine, length {length}", "linear"][0]
        values = [1.0 + seed / 10 + length / 1000 for seed in range(3)]
        assert found.value == pytest.approx(sum(values) / 3)
        wanted = mean_interval(values)
        assert (found.interval.low, found.interval.high) == pytest.approx((wanted.low, wanted.high))
        assert "3 seeds" in found.text
    for part in ("a", "b"):
        assert lines["mine, length 128", f"linear, part={part}"][1].value == 0.5
    lost = lines["mine, length 256", "fnet"][1]
    assert (lost.status, lost.notes) == ("out_of_memory", ("OOM: too big",))
    assert lines["mine, length 256", "fnet"][0].text == "–"
    assert len(lines) == 5


def test_a_median_of_passes_has_their_interval() -> None:
    samples = [0.01, 0.011, 0.012, 0.013, 0.03]
    found = [row("time", 0.012, samples=samples, **CELL)]
    found.append(row("loss", 1.0, samples=[0.0, 0.5, 2.5], **CELL))  # a mean
    (line,) = generic_table(prepare(frame(*found)), "here").rows
    loss, time = line.entries
    assert time.text == "0.0120 [0.0100, 0.0300; 5 passes]"
    assert time.interval == median_interval(samples)
    assert (loss.text, loss.interval) == ("1.00", None)


def test_labels_that_all_rows_share_stand_in_the_title() -> None:
    found = [row("loss", 1.0, model=m, labels={"split": "test"}, **CELL) for m in ("a", "b")]
    table = generic_table(prepare(frame(*found)), "here")
    assert table.title == "here, split=test"
    assert [line.title for line in table.rows] == ["a", "b"]


def test_results_of_one_seed_are_not_merged() -> None:
    found = [row("loss", v, cell=str(v), **CELL) for v in (1.0, 2.0)]
    (line,) = generic_table(prepare(frame(*found)), "here").rows
    assert line.entries[0].status == "ambiguous"


def test_a_report_shows_them(rows: pd.DataFrame, report: Report) -> None:
    written = report(rows)
    assert "metrics-mine.csv" in written
    assert "Runner mine" in written["report.md"].read_text()

"""The approximation lab's tables, through their data."""

from statistics import median
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.approximation_lab import (
    approximation_data,
    approximation_table,
    measures,
    of_measure,
)
from tests.reports.conftest import Report

OPTION = {"performer": "features", "sliding_window": "window"}


def rows_of(
    make: SimpleNamespace, model: str = "performer", *, length: int = 256, mode: str = "random",
    layers: tuple[str | None, ...] = (None,), error: float = 1.0,
    **columns: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """One cell: the error falls as the root of the budget, time grows with it."""
    cell = {"runner": "approximation", "mode": mode, "length": length, "model": model} | columns
    told = {"option": OPTION[model], "target": "softmax"}
    rows = []
    for budget in (16, 64):
        labels = {**told, "budget": str(budget)}
        for layer in layers:
            place = labels if layer is None else {**labels, "layer": layer}
            middle = error * (1 + int(layer or 0)) / budget**0.5
            samples = [0.5 * middle, 1.5 * middle]
            for metric in ("output_error", "matrix_error"):
                rows.append(make.row(metric, middle, samples=samples, labels=place, **cell))
            for k in ("1", "16"):
                recall = {**place, "k": k}
                rows.append(
                    make.row("topk_mass_recall", 0.5, samples=[0.4, 0.6], labels=recall, **cell)
                )
        times = [1e-4 * budget, 1.1e-4 * budget, 3e-4 * budget]
        rows.append(make.row("core_time", times[1], samples=times, labels=labels, **cell))
        paired = {**labels, "reference": "sdpa"}
        ratios = [budget / 32, budget / 32, budget / 16]
        rows.append(make.row("core_time_ratio", ratios[1], samples=ratios, labels=paired, **cell))
    alone = {"reference": "sdpa"}
    rows.append(make.row("core_time", 2e-3, samples=[2e-3] * 3, labels=alone, **cell))
    return rows


@pytest.fixture
def data(make: SimpleNamespace) -> pd.DataFrame:
    rows = []
    for length in (256, 1024):
        rows += rows_of(make, length=length)
        rows += rows_of(make, "sliding_window", length=length, error=1e-12)
        rows += rows_of(make, length=length, mode="trained", layers=("0", "1"))
    return approximation_data(prepare(make.frame(*rows)))


def test_data_are_means_over_draws_with_extremes_and_times(data: pd.DataFrame) -> None:
    own = data[(data["mode"] == "random") & (data["model"] == "performer")]
    line = of_measure(own, "output_error", "").iloc[0]
    assert (line["budget"], line["length"], line["draws"]) == (16, 256, 2)
    assert (line["value"], line["low"], line["high"]) == (0.25, 0.125, 0.375)
    assert median(line["core_times"]) == pytest.approx(1.1e-4 * 16)
    assert median(line["time_ratios"]) == 0.5
    assert measures(own) == [
        ("output_error", ""), ("matrix_error", ""), ("topk_mass_recall", "1"),
        ("topk_mass_recall", "16"),
    ]  # fmt: skip


def test_seeds_are_pooled(make: SimpleNamespace) -> None:
    rows = [*rows_of(make, error=1.0, seed=0), *rows_of(make, error=3.0, seed=1)]
    found = approximation_data(prepare(make.frame(*rows)))
    line = of_measure(found, "output_error", "").iloc[0]
    assert (line["value"], line["draws"]) == (0.5, 4)
    assert (line["low"], line["high"]) == (0.125, 1.125)


def test_the_table_has_a_row_for_each_budget_and_layer(make: SimpleNamespace) -> None:
    cell = {"runner": "approximation", "mode": "trained", "length": 256}
    lost = {"option": "features", "target": "softmax", "budget": "128", "layer": "0"}
    rows = rows_of(make, mode="trained", layers=("0", "1"))
    why = "features must be small"
    rows.append(make.failed("output_error", "performer", "unsupported", why, labels=lost, **cell))
    table = approximation_table(approximation_data(prepare(make.frame(*rows))), "trained")
    assert [row.title for row in table.rows] == [
        "performer, features = 16, layer 0", "performer, features = 16, layer 1",
        "performer, features = 64, layer 0", "performer, features = 64, layer 1",
        "performer, features = 128, layer 0",
    ]  # fmt: skip
    error, _, _, recall, milliseconds, speed = table.rows[1].entries
    assert (error.text, error.value) == ("0.500", 0.5)
    assert error.facts == {"low": 0.25, "high": 0.75, "draws": 2}
    assert recall.text == "0.500"
    assert milliseconds.value == pytest.approx(1.76)
    assert speed.value == 2.0
    assert milliseconds.interval is not None
    assert speed.interval is not None
    assert (milliseconds.interval.low, milliseconds.interval.high) == pytest.approx((1.6, 4.8))
    assert (speed.interval.low, speed.interval.high) == (1.0, 2.0)
    assert table.rows[-1].entries[0].notes == (why,)


def test_a_report_shows_it_and_no_cost_table(make: SimpleNamespace, report: Report) -> None:
    rows = [*rows_of(make), *rows_of(make, length=512)]
    labels = {"option": "features", "target": "softmax", "budget": "99"}
    why = "got features=99"
    cell = {"runner": "approximation", "mode": "random", "length": 512}
    rows.append(make.failed("output_error", "performer", "unsupported", why, labels=labels, **cell))
    names = report(make.frame(*rows))
    tables = {f"approximation-random.{form}" for form in ("md", "csv", "tex")}
    assert names.keys() == tables | {"report.md", "report.html"}
    assert f"unsupported: {why} (length 512)" in names["report.md"].read_text()

"""Spans as data, table and figure."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.spans import section, span_data, span_figure, span_table
from tests.reports.conftest import Report

HEADS = {("0", "0"): 3.0, ("0", "1"): 5.0, ("1", "0"): 10.0, ("1", "1"): 30.0}


def rows_of(make, model, *, scale=1.0, seed=0):
    cell = {"runner": "span", "mode": "span", "model": model, "seed": seed}

    def row(value, measure, layer="all", head="all"):
        labels = {"measure": measure, "layer": layer, "head": head, "split": "validation"}
        return make.row("span", value, labels=labels, **cell)

    rows = [row(scale * v, "attention", *place) for place, v in HEADS.items()]
    return [
        *rows, row(scale * 12.0, "attention"), row(scale * 4.0, "gradient"),
        row(scale * 64.0, "occlusion"),
    ]  # fmt: skip


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    labels = {"measure": "attention", "layer": "all", "head": "all", "split": "validation"}
    cell = {"runner": "span", "mode": "span"}
    gradient = make.row(
        "span", 0.0, model="identity", labels=labels | {"measure": "gradient"}, **cell
    )
    return prepare(
        make.frame(
            *rows_of(make, "softmax"),
            *rows_of(make, "softmax", scale=2.0, seed=1),
            make.failed("span", "identity", "unsupported", "no core", labels=labels, **cell),
            gradient,
            make.failed("span", "performer", "skipped", "its training diverged", **cell),
        )
    )


def test_data_are_means_over_seeds(some: pd.DataFrame) -> None:
    data = span_data(some)
    own = data[data["model"] == "softmax"].set_index(["measure", "layer", "head"])
    head = own.loc[("attention", "1", "1")]
    assert (head["span"], head["low"], head["high"], head["seeds"]) == (45.0, 30.0, 60.0, 2)
    refused = data[data["model"] == "identity"].set_index("measure").loc["attention"]
    assert (refused["status"], refused["reason"]) == ("unsupported", "no core")


def test_table_of_whole_models(some: pd.DataFrame) -> None:
    table = span_table(span_data(some))
    texts = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    assert texts == {
        "softmax": ["18.0", "4.50", "45.0", "6.00", "96.0"],
        "identity": ["unsupported"] * 3 + ["0", "–"],
        "performer": ["skipped"] * 5,
    }
    assert "its training diverged" in table.footnotes()
    assert [*section(some[some["metric"] != "span"])] == []


def test_figure_has_a_point_for_each_head(some: pd.DataFrame) -> None:
    figure = span_figure(span_data(some), looks(["softmax", "identity", "performer"]))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    titles = [label.get_text() for label in axes.get_xticklabels()]
    assert titles == ["layer 0", "layer 1", "gradient", "occlusion"]
    lines = {line.get_label(): line for line in axes.get_lines()}
    points = list(zip(lines["softmax"].get_xdata(), lines["softmax"].get_ydata(), strict=True))
    assert [(round(x), y) for x, y in points] == [
        (0, 4.5), (0, 7.5), (1, 15.0), (1, 45.0), (2, 6.0), (3, 96.0),
    ]  # fmt: skip
    assert list(lines["identity"].get_ydata()) == [0.0]
    assert {"softmax", "identity"} == {t.get_text() for t in figure.legends[0].get_texts()}
    ticks = [float(tick) for tick in axes.get_yticks()]
    assert ticks[0] == 0.0
    assert ticks[-1] >= 96.0
    assert axes.get_ylabel() == "span (tokens)"


def test_the_report_has_the_section(some: pd.DataFrame, report: Report) -> None:
    names = report(some)
    assert {"span.svg", "span.csv", "spans.md", "spans.csv"} <= names.keys()
    assert "## How far trained models look" in names["report.md"].read_text()

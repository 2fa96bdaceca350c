"""Recall of an index by layer and length: means, the table, and a panel for each layer."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.index_recall import recall_data, section
from lra.reports.sections.section import PagesPart, TablePart
from tests.reports.conftest import Report

FACTS = {"task": "mqar", "length": 128, "causal": True, "runner": "index_recall",
         "mode": "index_recall"}  # fmt: skip


def rows_at(make, model, recall, *, seed=0):
    """Rows of recall by layer and length; the mass is half of it."""
    for (layer, length), value in recall.items():
        labels = {"split": "validation", "layer": layer, "length": length, "queries": "9"}
        told = {**FACTS, "model": model, "seed": seed, "labels": labels}
        yield make.row("index_recall", value, **told)
        yield make.row("index_mass", value / 2, **told)


@pytest.fixture
def frame(make: SimpleNamespace) -> pd.DataFrame:
    places = {("0", "64"): 0.9, ("0", "128"): 0.8, ("10", "64"): 0.5, ("10", "128"): 0.4,
              ("2", "64"): 0.7, ("2", "128"): 0.6}  # fmt: skip
    later = {place: value + 0.1 for place, value in places.items()}
    return make.frame(
        *rows_at(make, "indexed", places),
        *rows_at(make, "indexed", later, seed=1),
        *rows_at(make, "compressed", {("0", "128"): 0.25}),
        make.failed("index_recall", "softmax", "unsupported", "no layer has an index", **FACTS),
    )


def test_means_are_over_seeds_of_a_layer_and_length(frame):
    data = recall_data(prepare(frame)).set_index(["metric", "model", "layer", "tokens"])
    assert data.loc[("index_recall", "indexed", "10", "64"), "value"] == pytest.approx(0.55)
    assert data.loc[("index_mass", "indexed", "10", "64"), "high"] == pytest.approx(0.3)
    assert set(data["length"]) == {128}  # of the task's examples, not of the queries


def test_the_table_has_a_line_for_each_layer_and_a_column_for_each_length(frame):
    table, _ = section(prepare(frame))
    assert isinstance(table, TablePart)
    assert [column.title for column in table.table.columns] == ["to 64", "to 128"]
    lines = {(r.section, r.title): [e.text for e in r.entries] for r in table.table.rows}
    assert lines["indexed", "layer 2, recall"] == ["75.0", "65.0"]
    assert lines["indexed", "layer 10, mass"] == ["27.5", "22.5"]
    assert lines["compressed", "layer 0, recall"] == ["–", "25.0"]
    assert lines["softmax", "every layer"] == ["unsupported"] * 2
    assert [title for model, title in lines if model == "indexed"] == [
        f"layer {layer}, {word}" for layer in (0, 2, 10) for word in ("recall", "mass")
    ]
    assert "no layer has an index" in " ".join(table.table.footnotes())


def test_the_figure_has_a_panel_for_each_layer(frame):
    rows = prepare(frame)
    _, part = section(rows)
    assert isinstance(part, PagesPart)
    figure = part.draw(part.data, looks([*rows["name"].unique()]))
    assert [axes.get_title(loc="left").partition(" (")[0] for axes in figure.axes] == [
        f"mqar, layer {layer}" for layer in (0, 2, 10)
    ]
    (line,) = [line for line in figure.axes[1].get_lines() if line.get_label() == "indexed"]
    assert [tuple(point) for point in line.get_xydata()] == [
        (64, pytest.approx(75)), (128, pytest.approx(65)),
    ]  # fmt: skip
    assert {axes.get_ylabel() for axes in figure.axes} == {"recall (% of the best choice)"}


def test_a_report_has_both(frame, report: Report):
    paths = report(frame)
    assert {"index-recall.md", "index-recall-by-length.svg"} <= {*paths}
    assert not [name for name in paths if name.startswith("metrics-index")]


def test_a_report_without_a_number_says_why(make: SimpleNamespace, report: Report):
    paths = report(
        make.frame(make.failed("index_recall", "softmax", "unsupported", "no index", **FACTS))
    )
    assert "no index" in paths["index-recall.md"].read_text()

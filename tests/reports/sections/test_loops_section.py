"""Scores by passes, as data, table and figure; and that they stand in no other table."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.loops import loop_data, loop_figure, section
from lra.reports.sections.section import PagesPart, TablePart
from lra.reports.tables.scores import splits

FACTS = {"task": "permutations", "length": 64, "causal": True, "runner": "loops", "mode": "loops"}


def rows_at(make, model, scores, *, seed=0):
    rows = []
    for passes, value in scores.items():
        labels = {"split": "test", "passes": str(passes), "trained_passes": "4"}
        told = {**FACTS, "model": model, "seed": seed, "labels": labels}
        if value is None:
            rows.append(make.failed("accuracy", status="diverged", reason="inf", **told))
        else:
            rows.append(make.row("accuracy", value, **told))
            rows.append(make.row("loss", 1 - value, **told))
    return rows


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    return prepare(
        make.frame(
            *rows_at(make, "softmax", {1: 0.2, 4: 0.6, 16: 0.8}),
            *rows_at(make, "softmax", {1: 0.4, 4: 0.6, 16: 0.9}, seed=1),
            *rows_at(make, "linear", {1: 0.1, 4: 0.3, 16: None}),
        )
    )


def test_means_are_over_seeds_of_one_metric(some):
    data = loop_data(some).set_index(["model", "passes"])
    assert set(data["metric"]) == {"accuracy"}
    assert data.loc[("softmax", "1"), "value"] == pytest.approx(0.3)
    assert data.loc[("softmax", "16"), "high"] == 0.9
    assert data.loc[("linear", "16"), "status"] == "diverged"
    assert not splits(some)  # no score of an ordinary evaluation


def test_lines_stand_in_the_order_of_passes(some):
    table, figure = section(some)
    assert isinstance(table, TablePart)
    assert isinstance(figure, PagesPart)
    titles = [row.title for row in table.table.rows]
    assert titles == ["1 pass", "4 passes", "16 passes"] * 2
    texts = {(row.section, row.title): row.entries[0].text for row in table.table.rows}
    assert texts["softmax", "16 passes"] == "85.0"
    for _, line in figure.data.groupby("model"):
        assert [*line["passes"]] == [1, 4, 16]


def test_a_dotted_line_is_at_the_best_baseline_without_oracles(make: SimpleNamespace):
    place = {"task": "permutations", "length": 64, "causal": True}
    scores = {"majority": 0.05, "bigram": 0.15, "oracle_rule": 1.0}
    guessed = [make.baseline(name, score, "", **place) for name, score in scores.items()]
    rows = prepare(make.frame(*rows_at(make, "softmax", {1: 0.2, 4: 0.6}), *guessed))
    _, part = section(rows)
    assert set(part.data["baseline"]) == {0.15}
    figure = part.draw(part.data, looks(["softmax"]))
    (axes,) = figure.axes
    level = [line for line in axes.get_lines() if [*line.get_ydata()] == [15.0, 15.0]]
    assert len(level) == 1
    assert axes.get_ylim()[0] < 15


def test_no_baseline_gives_no_dotted_line(some):
    _, part = section(some)
    assert part.data["baseline"].isna().all()
    assert "dotted" not in loop_figure.subtitle(part.data)

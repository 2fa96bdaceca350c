"""Scores against the width of models and the bytes of their state, as a table and two figures."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.width_curves import width_curves, width_data
from lra.reports.tables.scores import ACCURACY
from tests.reports.conftest import Report

SCORES = {
    "sdpa": {16: (0.6, 0.8), 64: (1.0, 1.0)},
    "delta_net": {16: (0.2, 0.4), 64: (0.9, 0.7)},
    "identity": {16: (0.1, 0.1)},
}
BYTES = {("sdpa", 16): 8192, ("sdpa", 64): 32768, ("delta_net", 16): 1024}


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    rows = []
    for family, of_width in SCORES.items():
        for width, values in of_width.items():
            options = {"backbone.width": str(width)}
            told = {"family": family, "task": "mqar", "length": 64, "options": options}
            name = f"{family} (width={width})"
            for seed, value in enumerate(values):
                rows.append(make.accuracy(name, seed, value, **told))
                if (family, width) in BYTES:
                    rows.append(make.row(
                        "state_bytes", float(BYTES[family, width]), model=name, seed=seed,
                        labels={"batch_size": "1"}, **told,
                    ))  # fmt: skip
    return prepare(make.frame(*rows))


def test_points_are_means_with_intervals_and_the_bytes_of_the_state(some: pd.DataFrame) -> None:
    data = width_data(some, ACCURACY)
    assert {*data["model"]} == {"sdpa", "delta_net"}  # identity has one width: no line
    points = data.set_index(["model", "width"])
    for (family, width), size in BYTES.items():
        assert points.loc[(family, width), "state_bytes"] == size
    assert pd.isna(points.loc[("delta_net", 64), "state_bytes"])
    wide = points.loc[("delta_net", 64)]
    assert wide["value"] == pytest.approx(0.8)
    assert (wide["low"], wide["high"]) == (0.0, 1.0)  # two seeds: a wide t interval, cut to [0, 1]
    assert (points.loc[("sdpa", 64)][["low", "value", "high"]] == 1.0).all()


def test_the_figure_of_state_has_only_points_with_a_state(some: pd.DataFrame) -> None:
    parts = {part.name: part for part in width_curves(some)}
    assert [*parts] == ["width-accuracy-table", "width-accuracy", "state-accuracy"]
    assert len(parts["width-accuracy"].data) == 4
    assert len(parts["state-accuracy"].data) == 3
    entries = {row.title: row.entries for row in parts["width-accuracy-table"].table.rows}
    assert entries["sdpa"][0].text.endswith("8,192 B")
    assert [entry.value for entry in entries["delta_net"]] == [
        pytest.approx(0.3),
        pytest.approx(0.8),
    ]


def test_the_report_has_both_figures(some: pd.DataFrame, report: Report) -> None:
    names = report(some)
    assert {"width-accuracy.csv", "state-accuracy.csv", "width-accuracy-table.md"} <= {*names}
    one = some[some["options"].map(lambda options: options.get("backbone.width") == "16")]
    assert not [*width_curves(one)]

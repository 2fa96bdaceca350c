"""Attention mass as table and figure."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.attention_mass import mass_data, mass_figure, mass_table
from tests.reports.conftest import Report

CELL = {
    "runner": "attention_mass", "mode": "attention_mass", "task": "text8", "source": "files",
    "causal": True, "length": 64,
}  # fmt: skip
MASSES = {("memory", "1"): 0.1, ("memory", "2"): 0.3, ("segment", "1"): 0.2, ("segment", "2"): 0.4}


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    rows = []
    for seed in (0, 1):
        for layer, more in (("0", 0.05), ("all", 0.0)):
            values = {**MASSES, ("memory", "all"): 0.4, ("segment", "all"): 0.6}
            for (region, bucket), value in values.items():
                labels = {"split": "validation", "layer": layer, "region": region, "bucket": bucket}
                place = CELL | {"model": "transformer_xl", "seed": seed, "labels": labels}
                mass = value + (more + 0.02 * seed) * (1 if region == "memory" else -1)
                rows.append(make.row("attention_mass", mass, **place))
                rows.append(make.row("attention_mass_error", 0.01, **place))
    why = "softmax: no memory of segments"
    rows.append(make.failed("attention_mass", "softmax", "unsupported", why, labels={}, **CELL))
    return prepare(make.frame(*rows))


def test_data_are_means_over_seeds(some: pd.DataFrame) -> None:
    data = mass_data(some).set_index(["model", "layer", "region", "bucket"])
    point = data.loc[("transformer_xl", "all", "memory", "2")]
    assert (point["mass"], point["error"], point["seeds"]) == (pytest.approx(0.31), 0.01, 2)
    assert data.loc[("softmax", "all", "all", "all"), "reason"] == "softmax: no memory of segments"


def test_the_table_has_each_region_by_layer(some: pd.DataFrame) -> None:
    table = mass_table(mass_data(some))
    assert {
        (row.section, row.title): [entry.text for entry in row.entries] for row in table.rows
    } == {
        ("softmax", "all layers"): ["unsupported"] * 3,
        ("transformer_xl", "layer 0"): ["–", "0.460", "0.540"],
        ("transformer_xl", "all layers"): ["–", "0.410", "0.590"],
    }


def test_the_figure_has_a_bar_for_each_bucket_and_the_report_the_section(
    some: pd.DataFrame, report: Report
) -> None:
    (axes,) = mass_figure(mass_data(some)).axes
    heights = [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
    assert heights == pytest.approx([0.11, 0.31, 0.19, 0.39])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["memory", "segment"]
    names = report(some)
    assert {"attention-mass.md", "attention-mass-by-age.svg"} <= names.keys()

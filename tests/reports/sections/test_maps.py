"""Attention maps as tables."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.attention_maps import map_data, map_table
from tests.reports.conftest import Report

CELL = {
    "runner": "attention_maps", "mode": "attention_maps", "task": "text", "source": "files",
    "length": 8, "model": "convbert",
}  # fmt: skip


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    rows = []

    def add(metric: str, value: float, samples: tuple[float, ...] = (), **labels: str) -> None:
        for seed in (0, 1):
            shift = 0.02 * seed
            own = [sample + shift for sample in samples]
            place = CELL | {"seed": seed, "labels": labels, "samples": own}
            rows.append(make.row(metric, value + shift, **place))

    for layer in ("0", "1"):
        for head in ("0", "1"):
            where = {"layer": layer, "head": head}
            add("attention_distance", 2.0 + int(head), **where)
            add("attention_within", 0.5, within="1", **where)
            add("singular_value_share", 0.6, (0.6, 0.9), **where)
            add("kernel_weight", 0.4, (0.3, 0.4, 0.2), left="1", **where)
        add("projection_energy", 0.3, (0.3, 0.98), layer=layer, head="0")
        add("projection_energy", 0.8, (0.8, 0.9, 0.98), layer=layer, head="all")
        for row, samples in enumerate([(0.7, 0.2), (0.1, 0.8)]):
            add("attention_map", samples[row], samples, layer=layer, row=str(row), positions="4")
    add("kernel_deviation", 0.1, (0.1, 0.1, 0.1), layer="0", head="0", left="1")
    for one, other, value, score in (
        ("B", "A", 0.5, "2"),
        ("C", "A", -0.2, "-4"),
        ("C", "B", 0.1, "0"),
    ):
        add("attention_similarity", value, token=one, other=other, score=score)
    why = "the outputs of LightConv are no weighted means of values"
    bad = CELL | {"labels": {"measure": "locality"}}
    del bad["model"]
    rows.append(make.failed("attention_distance", "light_conv", "unsupported", why, **bad))
    return prepare(make.frame(*rows))


def test_data_are_means_over_seeds(some: pd.DataFrame) -> None:
    data = map_data(some).set_index(["metric", "layer", "head"]).sort_index()
    point = data.loc[("projection_energy", "1", "all")]
    assert point["value"] == pytest.approx(0.81)
    assert point["seeds"] == 2


def test_the_table_has_means_over_heads_or_the_reason(some: pd.DataFrame) -> None:
    table = map_table(map_data(some))
    titles = [column.title for column in table.columns]
    found = {
        (row.section, row.title): dict(zip(titles, row.entries, strict=True)) for row in table.rows
    }
    assert list(found) == [("convbert", "layer 0"), ("convbert", "layer 1"), ("light_conv", "all")]
    own = {title: entry.text for title, entry in found["convbert", "layer 1"].items()}
    assert own == {
        "mean distance": "2.51", "within 1": "0.510", "¼ of singular values": "0.610",
        "¼ of dimensions, a head": "0.310", "¼ of dimensions, all heads": "0.810",
    }  # fmt: skip
    refused = found["light_conv", "all"]["mean distance"]
    assert (refused.text, refused.notes) == (
        "unsupported", ("the outputs of LightConv are no weighted means of values",),
    )  # fmt: skip


def test_the_report_has_every_number_of_kernels_and_letters(
    some: pd.DataFrame, report: Report
) -> None:
    paths = report(some)
    assert {"attention-distance.svg", "attention-maps.md"} <= paths.keys()
    table = paths["metrics-attention_maps.md"].read_text()
    heads = [line for line in table.splitlines() if "head=0, layer=0, left=1" in line]
    assert [[part.split()[0] for part in line.split("|")[2:-1]] for line in heads] == [
        ["–¹", "0.110", "0.410"]
    ]
    assert "convbert, other=A, score=-4, token=C | -0.190" in table

"""Compressed models as table and figure."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.compression import compression_data, compression_figure, compression_table
from tests.reports.conftest import Report

CELL = {
    "runner": "compress", "mode": "compress", "task": "listops", "source": "generated",
    "causal": False, "length": 150,
}  # fmt: skip


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    rows = []

    def variant(model: str, seed: int, accuracy: float, size: float, **labels: str) -> None:
        place = CELL | {"model": model, "seed": seed}
        for metric, value, more in (
            ("accuracy", accuracy, {"split": "test"}),
            ("accuracy", 0.0, {"split": "validation"}),
            ("disk_bytes", 409600.0, {"storage": "dense"}),
            ("disk_bytes", size, {"storage": "sparse"}),
            ("parameters", 100_000.0, {}),
            ("nonzero_parameters", 40_000.0, {}),
            ("flops", 4e6, {}),
        ):
            rows.append(make.row(metric, value, labels=labels | more, **place))
        ratios = [0.5, 0.6, 0.7]
        rows.append(make.row("compressed_time_ratio", 0.6, samples=ratios, labels=labels, **place))

    for seed in (0, 1):
        for method in ("heads", "magnitude"):
            variant("softmax", seed, 0.5, 4e5, method=method, amount="0", stage="trained")
        variant("softmax", seed, 0.4 + 0.02 * seed, 3e5, method="magnitude", amount="0.5",
                stage="compressed", scope="overall", sparsity="0.5")  # fmt: skip
    variant("softmax", 0, 0.45, 3e5, method="magnitude", amount="0.5", stage="fine-tuned",
            scope="overall", sparsity="0.5", way="gradual")  # fmt: skip
    coded = {"sparsity": "0.5", "scope": "layer", "form": "weight_only", "library": "torchao"}
    variant("linear", 0, 0.4, 1e5, method="int8+magnitude", amount="0.5", stage="compressed",
            **coded)  # fmt: skip
    why = "FNet has no such heads (it is no subclass of MultiHead)"
    rows.append(make.failed("accuracy", "fnet", "unsupported", why, labels={}, **CELL))
    return prepare(make.frame(*rows))


def test_the_table_has_each_variant_once(some: pd.DataFrame) -> None:
    table = compression_table(compression_data(some))
    found = {(row.section, row.title): [e.text for e in row.entries] for row in table.rows}
    softmax = "softmax, listops (length 150)"
    assert found == {
        (softmax, "as trained"): ["50.0", "400.0", "390.6", "100.0", "40.0", "2.00", "0.60"],
        (softmax, "50 % zeros, overall"): [
            "41.0", "400.0", "293.0", "100.0", "40.0", "2.00", "0.60"
        ],
        (softmax, "50 % zeros, overall, gradual, fine-tuned"): [
            "45.0", "400.0", "293.0", "100.0", "40.0", "2.00", "0.60 [0.50, 0.70]"
        ],
        ("linear, listops (length 150)", "int8, weight_only, 50 % zeros, layer"): [
            "40.0", "400.0", "97.7", "100.0", "40.0", "2.00", "0.60 [0.50, 0.70]"
        ],
        ("fnet, listops (length 150)", "no result"): ["unsupported", *["–"] * 6],
    }  # fmt: skip
    (lost,) = [row.entries[0] for row in table.rows if row.title == "no result"]
    assert "no subclass of MultiHead" in lost.notes[0]


def test_the_figure_shows_both_costs_and_the_report_has_the_section(
    some: pd.DataFrame, report: Report
) -> None:
    data = compression_data(some)
    left, right = compression_figure(data[data["model"] == "softmax"]).axes
    stars = [line for line in left.lines if line.get_marker() == "*"]
    assert stars[0].get_xdata()[0] == pytest.approx(4e5 / 1024)  # type: ignore[index]
    points = [list(line.get_ydata()) for line in right.lines if line.get_marker() == "o"]
    assert sorted(points) == [[pytest.approx(41.0)], [pytest.approx(45.0)]]
    names = report(some)
    assert {"compression.md", "compression-trade-off.svg"} <= names.keys()

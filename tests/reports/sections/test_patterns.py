"""The sheet of patterns and its table."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.patterns import pattern_data, seen
from tests.reports.conftest import Report

CELL = {"runner": "pattern", "mode": "pattern", "task": "listops", "length": 2}


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    found = {
        ("local", "0", "0", "0:0, 1:0"): [(1.0, 0.0), (0.0, 1.0)],
        ("h_transformer", "0", "0", "0:0"): [(2.0, 2.0), (1.0, 1.0)],
        ("h_transformer", "0", "1", "0:1"): [(1.0, 1.0), (1.0, 1.0)],
    }
    rows = []
    for (model, layer, head, same), matrix in found.items():
        for number, samples in reversed(list(enumerate(matrix))):
            labels = {"layer": layer, "head": head, "same": same, "row": str(number)}
            keys = float(sum(size > 0 for size in samples))
            place = CELL | {"model": model, "labels": labels, "samples": list(samples)}
            rows.append(make.row("keys_seen", keys, **place))
    why = "a stack of its own"
    rows.append(make.failed("keys_seen", "tlb", "unsupported", why, labels={}, **CELL))
    return prepare(make.frame(*rows))


def test_a_pattern_is_a_matrix_in_the_order_of_its_queries(some: pd.DataFrame) -> None:
    data = pattern_data(some)
    assert dict.fromkeys(zip(data["model"], data["kind"], strict=True)) == dict.fromkeys(
        [("h_transformer", "head 0"), ("h_transformer", "head 1"), ("local", ""), ("tlb", "")]
    )
    grouped = seen(data[data["kind"] == "head 0"]).values
    np.testing.assert_array_equal(grouped, [[0.5, 0.5], [1.0, 1.0]])
    np.testing.assert_array_equal(seen(data[data["model"] == "local"]).values, np.eye(2))


def test_the_report_has_the_sheet_its_numbers_and_the_reasons(
    some: pd.DataFrame, report: Report
) -> None:
    paths = report(some)
    assert "pattern.svg" in paths
    drawn = pd.read_csv(paths["pattern.csv"])
    own = drawn[drawn["model"] == "local"].sort_values(["row", "key"])
    assert own["alike"].tolist() == [1.0, 0.0, 0.0, 1.0]
    text = paths["patterns.md"].read_text()
    assert "| every layer and head | 1.00 | 1.00 | 1.00 |" in text
    assert "a stack of its own" in text

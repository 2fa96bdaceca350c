"""The table of patterns."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.patterns import pattern_data
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


def test_a_pattern_is_named_by_what_tells_it_apart(some: pd.DataFrame) -> None:
    data = pattern_data(some)
    assert dict.fromkeys(zip(data["model"], data["kind"], strict=True)) == dict.fromkeys(
        [("h_transformer", "head 0"), ("h_transformer", "head 1"), ("local", ""), ("tlb", "")]
    )


def test_the_report_has_their_numbers_and_the_reasons(some: pd.DataFrame, report: Report) -> None:
    text = report(some)["patterns.md"].read_text()
    assert "| every layer and head | 1.00 | 1.00 | 1.00 |" in text
    assert "| head 0 | 2.00 | 2.00 | 2.00 |" in text
    assert "a stack of its own" in text

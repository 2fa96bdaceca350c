"""Learned spans as table and figure."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.learned_spans import learned_spans
from lra.reports.sections.section import PagesPart, TablePart

PLACE = {"task": "text8", "source": "files", "causal": True, "model": "adaptive_span"}


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    rows = [make.accuracy("linear", 0, 0.5, task="text8", source="files", causal=True)]
    for seed, more in ((0, 0.0), (1, 10.0)):
        for layer, spans in enumerate(([2.0, 8.0], [100.0, 30.0])):
            for head, span in enumerate(spans):
                labels = {"layer": str(layer), "head": str(head)}
                rows.append(
                    make.row("learned_span", span + more, seed=seed, labels=labels, **PLACE)
                )
        labels = {"layer": "all", "head": "all"}
        rows.append(make.row("learned_span", 35.0 + more, seed=seed, labels=labels, **PLACE))
        for spans, flops in (("learned", 2.5e6), ("full", 1e7)):
            labels = {"spans": spans}
            rows.append(make.row("span_flops", flops, seed=seed, labels=labels, **PLACE))
            rows.append(
                make.row("span_flops_per_token", flops / 2, seed=seed, labels=labels, **PLACE)
            )
    return prepare(make.frame(*rows))


def test_the_table_has_mean_longest_head_and_operations_and_the_figure_each_head(
    some: pd.DataFrame,
) -> None:
    table, figure = learned_spans(some)
    assert isinstance(table, TablePart)
    (row,) = table.table.rows
    assert row.title == "adaptive_span"
    assert [entry.text for entry in row.entries] == [
        "40.0", "105.0", "2,500,000", "0.25", "1,250,000", "0.25",
    ]  # fmt: skip
    assert isinstance(figure, PagesPart)
    heads = figure.data[figure.data["head"] != "all"].set_index(["layer", "head"])["span"]
    assert heads.to_dict() == {
        ("0", "0"): 7.0, ("0", "1"): 13.0, ("1", "0"): 105.0, ("1", "1"): 35.0,
    }  # fmt: skip
    assert [*learned_spans(some[some["model"] == "linear"])] == []

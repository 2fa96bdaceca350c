"""Table 2 of the Long Range Arena from planted rows."""

from typing import Any

import pytest

from lra.reports.arena.costs import arena_points, cost_table
from lra.reports.arena.runs import protocol_runs
from lra.reports.rows import prepare
from lra.reports.tables.scores import CAVEAT
from lra.reports.tables.table import Table
from tests.reports.arena.arena_rows import labels, steps
from tests.reports.conftest import failed, frame

LENGTHS = (1000, 2000, 3000, 4000)


def tables(*rows: dict[str, Any]) -> list[Table]:
    return [
        cost_table(runs, part, points)
        for runs in protocol_runs(prepare(frame(*rows)))
        for part, points in arena_points(runs)
    ]


def test_the_papers_layout() -> None:
    rows = [r for n in LENGTHS for r in steps("softmax", n, 0.5, peak=3e9)]
    rows += [r for n in LENGTHS for r in steps("linear", n, 0.25, exact=0.5, peak=1.5e9)]
    (table,) = tables(*rows)
    assert [(c.group, c.title) for c in table.columns] == [
        (group, f"{n}K") for group in ("steps per second", "peak memory (GB)") for n in range(1, 5)
    ]
    lines = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    assert lines == {
        "softmax": ["2.00 (1)"] * 4 + ["3.00 (1)"] * 4,
        "softmax (published, on TPUs)": [
            "8.1 (1)", "4.9 (1)", "2.3 (1)", "1.4 (1)", "0.85", "2.65", "5.51", "9.48"],
        "linear": ["4.00 (2.0)"] * 4 + ["1.50 (0.50)"] * 4,
        "linear (published, on TPUs)": [
            "9.1 (1.1)", "9.3 (1.9)", "8.6 (3.7)", "7.8 (5.6)", "0.37", "0.57", "0.8", "1.03"],
    }  # fmt: skip
    for words in ("batch 32", "literal softmax attention", "4 x 4 TPU v3", CAVEAT):
        assert words in table.caption


def test_other_batches_lengths_modes_and_tasks_are_not_in_it() -> None:
    rows = [
        *steps("linear", 1024, 0.5), *steps("linear", 2048, 0.5, batch=8),
        *steps("linear", 8192, 0.5), *steps("linear", 4096, 0.5, mode="forward"),
    ]  # fmt: skip
    listops = [r | {"task": "listops", "cell": "x"} for r in steps("linear", 3072, 0.5)]
    (table,) = tables(*rows, *listops)
    assert [column.title for column in table.columns] == ["1K", "1K"]
    assert table.rows[0].entries[0].notes == ("exact attention was not measured in the same run",)
    assert tables(*steps("linear", 512, 0.5)) == []


def test_what_failed_has_a_mark_and_a_missing_pair_a_note() -> None:
    place = {"runner": "scaling", "mode": "step", "task": "text", "source": "imdb"}
    rows = [
        *steps("linear", 1000, 0.5, exact=1.0),
        failed("time_ratio", "linear", "out_of_memory", "needs 9 GiB", length=1000, **place,
               labels=labels(reference="sdpa")),
        failed("time", "softmax", "out_of_memory", "needs 9 GiB", length=1000, **place,
               labels=labels()),
        *steps("performer", 1000, 0.5),
    ]  # fmt: skip
    (table,) = tables(*rows)
    lines = {row.title: row.entries for row in table.rows}
    assert [e.text for e in lines["softmax"]] == ["OOM", "OOM"]
    assert lines["softmax"][0].notes == ("needs 9 GiB",)
    assert lines["linear"][0].text == "2.00 (2.0)"
    assert lines["performer"][0].text == "2.00"


@pytest.mark.parametrize("mark", ["protocol", "scale"])
def test_protocols_and_scales_share_no_table(mark: str) -> None:
    other = labels("nystrom") if mark == "protocol" else labels(scale="tiny")
    found = tables(
        *steps("linear", 1000, 0.5), *steps("linear", 1000, 0.25, marks=other, cell="b"),
        *steps("linear", 300, 0.1, marks=other, batch=2, cell="c"),
    )  # fmt: skip
    assert len(found) == 2
    assert found[0].rows[0].entries[0].text == "2.00"
    tiny = found[1]
    assert [c.title for c in tiny.columns][: len(tiny.columns) // 2] == (
        ["1K"] if mark == "protocol" else ["300", "1K"]
    )
    assert tiny.caption.startswith("These runs have scale tiny") == (mark == "scale")

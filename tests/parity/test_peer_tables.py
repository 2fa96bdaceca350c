"""The section of the plug-in `peers`."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.names import display_name
from lra.reports.rows import DAGGER, prepare
from lra.reports.style import ReportStyle, using
from peers.section import peer_rows, peer_table, speed_data, speed_figure

WHY = "waited for a processor (20 of 20 samples)"
UNLIKE = "another function: largest relative error 3.0e+00; it is blind"


def compared(
    make: SimpleNamespace,
    model: str,
    peer: str,
    length: int,
    speedup: float,
    *,
    bytes_ratio: float = 0.5,
    **columns: Any,
) -> list[dict[str, Any]]:
    labels = {"peer": peer, "setting": "64 slots", "version": "1"}
    place = {"runner": "peers", "mode": "step", "model": model, "length": length, **columns}
    samples = [speedup * factor for factor in (0.9, 1.0, 1.1)]
    return [
        make.row("peer_speedup", speedup, samples=samples, labels=labels, **place),
        make.row("peer_bytes_ratio", bytes_ratio, labels=labels, **place),
    ]


def without(
    make: SimpleNamespace, model: str, peer: str, length: int, reason: str
) -> dict[str, Any]:
    labels = {"peer": peer, "setting": "64 slots", "version": "1"}
    return make.row(
        "peer_speedup", None, status="unsupported", reason=reason, labels=labels, runner="peers",
        mode="step", model=model, length=length,
    )  # fmt: skip


def unlike(make: SimpleNamespace, model: str, peer: str, length: int) -> list[dict[str, Any]]:
    last = without(make, model, peer, length, UNLIKE)
    apart = {"metric": "peer_error", "value": 3.0, "status": "ok", "reason": "", "unit": "1"}
    return [{**last, **apart}, last]


@pytest.fixture
def rows(make: SimpleNamespace) -> pd.DataFrame:
    return peer_rows(
        prepare(
            make.frame(
                *compared(make, "linformer", "package A", 1024, 1.5),
                *compared(make, "linformer", "package A", 2048, 2.0, bytes_ratio=0.25),
                *compared(make, "linear", "package B", 1024, 12.0, causal=True),
                *unlike(make, "linear", "package C", 1024),
                without(make, "linear", "package D", 1024, "computes another function only"),
                make.row("accuracy", 0.5, labels={"split": "test"}),
            )
        )
    )


def test_the_table_shows_ratios_bytes_and_what_is_unlike(rows: pd.DataFrame) -> None:
    table = peer_table(rows, "step")
    assert table is not None
    assert [column.title for column in table.columns] == ["1,024", "2,048"]
    texts = {(r.section[:4], r.title): [e.text for e in r.entries] for r in table.rows}
    assert texts["time", "linformer: package A (64 slots)"] == [
        "1.50 [1.4, 1.7]",
        "2.00 [1.8, 2.2]",
    ]
    assert texts["peak", "linformer: package A (64 slots)"] == ["0.500", "0.250"]
    assert texts["time", "linear: package B (64 slots, causal)"][1] == "–"
    assert texts["time", "linear: package C (64 slots)"] == ["unlike", "–"]
    assert texts["time", "linear: package D (64 slots)"] == ["unsupported", "–"]
    assert UNLIKE in table.footnotes()
    assert ("peak", "linear: package C (64 slots)") not in texts


def test_a_ratio_says_where_float32_alone_differs(make: SimpleNamespace) -> None:
    labels = {"peer": "package A", "setting": "64 slots", "version": "1"}
    place = {"runner": "peers", "mode": "step", "model": "linformer", "length": 1024}
    errors = [
        make.row("peer_error", value, labels={**labels, "compared_in": dtype}, **place)
        for dtype, value in (("float32", 0.013), ("float64", 2e-14))
    ]
    measured = compared(make, "linformer", "package A", 1024, 1.5)
    table = peer_table(peer_rows(prepare(make.frame(*measured, *errors))), "step")
    assert table is not None
    (note,) = table.footnotes()
    assert "1.3e-02 in float32 and 2.0e-14 in float64" in note


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"runner.direction": "causal"}, "linear"),
        ({"mixer.features": "64", "runner.direction": "causal"}, "linear (features=64)"),
        ({"runner.direction": "causal", "seed": "1"}, "linear (seed=1)"),
        ({"mixer.note": "runner.direction=causal"}, "linear (note=runner.direction=causal)"),
        ({}, "linear"),
    ],
)
def test_a_name_does_not_repeat_the_direction(
    make: SimpleNamespace, options: dict[str, str], wanted: str
) -> None:
    rows = make.frame(*compared(make, "linear", "package A", 1024, 1.5))
    told = rows.assign(
        model=display_name("linear", options), family="linear", options=[options] * len(rows)
    )
    assert set(peer_rows(prepare(told))["name"]) == {wanted}


def test_there_is_no_table_without_comparisons(rows: pd.DataFrame) -> None:
    assert peer_table(rows, "forward") is None


def test_the_figure_holds_the_measured_ratios_alone(rows: pd.DataFrame) -> None:
    data = speed_data(rows, "step")
    assert data[["family", "length", "speedup"]].to_numpy().tolist() == [
        ["linear", 1024, 12.0],
        ["linformer", 1024, 1.5],
        ["linformer", 2048, 2.0],
    ]
    (axes,) = speed_figure(data, "step").axes
    dots = {
        float(line.get_xdata()[0])
        for line in axes.get_lines()
        if line.get_marker() == "o" and len(line.get_xdata())
    }
    assert {12.0, 1.5, 2.0} <= dots


def test_comparisons_with_peers_mark_it(make: SimpleNamespace) -> None:
    rows = []
    for n in (256, 512):
        cell = {"runner": "peers", "mode": "forward", "model": "linear", "length": n}
        labels = {"peer": "other", "setting": "plain", "version": "1"}
        labels |= {"disturbed": WHY} if n == 512 else {}
        rows.append(make.row("peer_speedup", 2.0, samples=[2.0, 2.0], labels=labels, **cell))
    own = peer_rows(prepare(make.frame(*rows)))
    table = peer_table(own, "forward")
    assert table is not None
    assert [DAGGER in entry.text for entry in table.rows[0].entries] == [False, True]
    assert list(speed_data(own, "forward")["disturbed"]) == ["", WHY]


def test_a_style_chooses_among_the_lengths(make: SimpleNamespace) -> None:
    rows = compared(make, "linear", "A", 256, 1.5) + compared(make, "linear", "A", 512, 2.0)
    with using(ReportStyle(lengths=[512])):
        assert set(peer_rows(prepare(make.frame(*rows)))["length"]) == {512}

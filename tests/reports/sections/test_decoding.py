"""Decoding in reports: one line per model and mode, per text where bytes are meant."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lra.reports.dashboard.plan import plan_runs
from lra.reports.figures.drawing import looks
from lra.reports.rows import AMBIGUOUS, MISSING, prepare
from lra.reports.sections.decoding import (
    decode_data,
    decode_looks,
    decode_points,
    decode_table,
    line_name,
    section,
)
from lra.reports.sections.section import LinesPart
from tests.reports.conftest import Report
from tests.reports.rows_of_tables import rows_in

BATCH = 4


def written(
    make: SimpleNamespace, model: str, mode: str, length: int, seconds: float, **columns: Any
) -> list[dict[str, Any]]:
    """The rows of one cell; its state holds `length` KiB for each text."""
    cell = {"runner": "decode", "model": model, "mode": mode, "length": length, "task": "mnist"}
    cell |= {"causal": True} | columns
    samples = list(seconds * np.linspace(0.9, 1.1, 11))
    rows = [
        make.row("token_time", seconds, samples=samples, **cell),
        make.row("token_time_percentile", 1.09 * seconds, **cell),
        make.row("first_token_time", 50 * seconds, **cell),
        make.row("tokens_per_second", BATCH / seconds, **cell),
        make.row("peak_tensor_bytes", 2.0**20, **cell),
        make.row("batch_size", float(BATCH), **cell),
    ]
    if mode == "state":
        rows.append(make.row("state_bytes", BATCH * length * 2.0**10, **cell))
    return rows


@pytest.fixture
def rows(make: SimpleNamespace) -> pd.DataFrame:
    """Softmax is quadratic without a state; Reformer has none; a length was too slow."""
    found = []
    for n in (256, 512, 1024):
        found += written(make, "softmax", "state", n, 1e-6 * n)
        found += written(make, "linear", "state", n, 1e-3)
        if n < 1024:
            found += written(make, "softmax", "recompute", n, 1e-8 * n**2)
        found += written(make, "reformer", "recompute", n, 2e-5 * n)
        cell = {"runner": "decode", "length": n, "task": "mnist", "causal": True}
        told = {**cell, "mode": "state"}
        why = "Reformer has no state along time"
        found.append(make.failed("token_time", "reformer", "unsupported", why, **told))
        found.append(
            make.failed("token_time", "reformer", "unsupported", why, mode="state", **cell)
        )
    why = "the first token took 7.2 s, the limit is 5 s"
    found.append(make.failed("token_time", "softmax", "skipped", why, mode="recompute", **cell))
    return make.frame(*found)


def test_a_line_for_each_model_and_mode(rows: pd.DataFrame) -> None:
    data = decode_data(decode_points(prepare(rows)), "token_time")
    names = list(dict.fromkeys(data["model"]))
    assert names == [
        "softmax", "softmax (recomputed)", "linear", "reformer", "reformer (recomputed)",
    ]  # fmt: skip
    slow = data[data["model"] == "softmax (recomputed)"].set_index("length")
    assert slow.loc[512, "value"] == pytest.approx(1e-8 * 512**2)  # of the batch, not of a text
    assert pd.isna(slow.loc[512, "exponent"])  # two lengths determine none
    assert slow.loc[512, "p20"] == pytest.approx(0.94 * 1e-8 * 512**2)
    assert tuple(slow.loc[1024, ["status", "unit", "batch_size"]].fillna(0)) == ("skipped", "s", 0)
    assert data[data["model"] == "softmax"]["exponent"].iloc[0] == pytest.approx(1.0)
    assert data[data["model"] == "linear"]["exponent"].iloc[0] == pytest.approx(0.0, abs=1e-9)
    absent = data[data["model"] == "reformer"]
    assert absent["value"].isna().all()
    assert set(absent["reason"]) == {"Reformer has no state along time"}


def test_bytes_are_of_one_text_and_of_models_that_remember(rows: pd.DataFrame) -> None:
    data = decode_data(decode_points(prepare(rows)), "state_bytes")
    assert list(dict.fromkeys(data["model"])) == ["softmax", "linear", "reformer"]
    own = data[data["model"] == "softmax"]
    assert list(own["value"]) == [n * 2.0**10 for n in (256, 512, 1024)]
    assert set(own["unit"]) == {"B"}


def test_the_table_says_everything_and_why_not(rows: pd.DataFrame) -> None:
    table = decode_table(decode_points(prepare(rows)))
    assert [column.key for column in table.columns] == ["256", "512", "1024"]
    found = {(row.section.partition(" (")[0], row.title): row.entries for row in table.rows}
    assert [entry.text for entry in found["time to generate one token, median", "softmax"]] == [
        "0.256", "0.512", "1.02",
    ]  # fmt: skip
    state = found["size of the state of one text", "softmax"]
    assert [entry.value for entry in state] == [256.0, 512.0, 1024.0]
    recomputed = found["size of the state of one text", "softmax (recomputed)"]
    assert recomputed[0].notes == ("recomputing has no state; it stores only the tokens",)
    assert recomputed[0].status == MISSING
    slow = found["time to generate one token, median", "softmax (recomputed)"]
    assert (slow[2].text, slow[2].value) == ("skipped", None)
    assert "the limit is 5 s" in slow[2].notes[0]
    assert "4 texts are generated together in a batch" in table.caption


def test_configurations_under_one_name_are_not_merged(
    rows: pd.DataFrame, make: SimpleNamespace
) -> None:
    twice = [*rows.to_dict("records"), *written(make, "linear", "state", 256, 9.0, cell="other")]
    points = {(p.name, p.length): p for p in decode_points(prepare(make.frame(*twice)))}
    point = points["linear", 256]
    assert point.value("token_time").status == point.value("state_bytes").status == AMBIGUOUS
    assert points["linear", 512].value("token_time").ok


def test_names_of_lines() -> None:
    def called(mode: str, options: dict[str, str], *departures: str) -> str:
        parts = {"family": "luna", "options": options, "departures": departures}
        return line_name({"name": "as it is", "mode": mode, **parts})

    assert called("state", {}) == "as it is"
    assert called("recompute", {}) == "luna (recomputed)"
    assert called("recompute", {}, "lra") == "luna (lra, recomputed)"
    assert called("recompute", {"mixer.size": "8"}) == "luna (size=8, recomputed)"
    assert called("recompute", {"mixer.size": "8"}, "lra") == "luna (size=8) (lra, recomputed)"


def drawings(
    rows: pd.DataFrame, models: list[str], groups: dict[str, list[str]]
) -> Iterator[tuple[LinesPart, pd.DataFrame, Figure]]:
    """Every page of a figure, with what it shows."""
    for part in section(prepare(rows)):
        if isinstance(part, LinesPart):
            for data, figure in part.draw(part.data, looks(models), groups):
                yield part, data, figure


def test_panels_hold_the_lines_of_their_models(make: SimpleNamespace) -> None:
    names = [f"m{i}" for i in range(9)]
    found = [
        row for name in names for mode in ("state", "recompute")
        for row in written(make, name, mode, 256, 1e-3)
    ]  # fmt: skip
    groups = {"first": names[:3], "second": names[3:8]}
    (part, _, figure), *_ = drawings(make.frame(*found), names, groups)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["first", "second (1 of 2)", "second (2 of 2)", "other models"]
    assert part.heading in {text.get_text() for text in figure.texts}


def test_a_recomputing_line_has_its_models_colour(rows: pd.DataFrame) -> None:
    points = decode_points(prepare(rows))
    found = decode_looks(points, looks(["softmax", "linear", "reformer"]))
    one, other = found["softmax"], found["softmax (recomputed)"]
    assert one.color == other.color
    assert (one.dashes, one.marker) != (other.dashes, other.marker)


def test_figures_draw_the_data(rows: pd.DataFrame, make: SimpleNamespace) -> None:
    stems = {}
    for part, data, figure in drawings(rows, ["softmax", "linear", "reformer"], {}):
        figure.draw_without_rendering()
        (axes,) = figure.axes
        stems[part.name] = (data, axes)
    assert list(stems) == ["decoding-token-time", "decoding-state-bytes"]
    data, axes = stems["decoding-token-time"]
    drawn = {str(line.get_label()).split("  ")[0]: line for line in axes.get_lines()}
    own = data[data["model"] == "softmax"]
    assert list(drawn["softmax"].get_ydata()) == pytest.approx(list(own["value"]))
    assert axes.get_xlabel() == "context (tokens)"
    assert axes.get_ylabel() == "time of one token"
    assert axes.get_xscale() == axes.get_yscale() == "log"
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert sorted(tuple(line.get_xdata()) for line in crosses) == [(256, 512, 1024), (1024,)]
    assert stems["decoding-state-bytes"][1].get_ylabel() == "state of one text"


def test_the_report_has_them_all(rows: pd.DataFrame, report: Report) -> None:
    names = report(rows)
    for stem in ("decoding-token-time", "decoding-state-bytes"):
        assert {f"{stem}.{form}" for form in ("svg", "csv")} <= names.keys()
    assert {"decoding.md", "decoding.csv", "decoding.tex"} <= names.keys()
    page = names["report.md"].read_text()
    assert "the rows have no times of passes against length" in page  # a token is no pass
    assert "reformer, mnist, state: unsupported: Reformer has no state along time" in page
    assert "(length 256; length 512; length 1024)" in page


def test_only_refusals_leave_no_figure(make: SimpleNamespace, report: Report) -> None:
    cell = {"runner": "decode", "mode": "state", "length": 256, "causal": True}
    row = make.failed("token_time", "reformer", "unsupported", "has no state", **cell)
    names = report(make.frame(row))
    assert not any(name.endswith(".svg") for name in names)
    page = names["report.md"].read_text()
    assert "decoding-token-time: every measurement failed, so nothing can be drawn" in page


def test_a_run_holds_them_by_length(rows: pd.DataFrame) -> None:
    plans = {plan.name: plan for plan in plan_runs(rows_in(rows), sweep="s", cells={})}
    history = plans["linear/mnist/s0/decode/256-1024"].history
    assert [line["sequence_length"] for line in history] == [256, 512, 1024]
    assert history[0]["speed/state_token_time"] == 1e-3
    assert history[1]["memory/state_state_bytes"] == BATCH * 512 * 2.0**10

"""What was measured on a busy machine is marked, and used as far as both clocks support it."""

from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from lra.reports.dashboard.plan import plan_runs
from lra.reports.figures.drawing import looks
from lra.reports.figures.panels import scaling_figure
from lra.reports.figures.scaling import COLUMNS, scaling_data, why_absent
from lra.reports.page.document import to_html
from lra.reports.rows import DAGGER, CostPoint, by_setting, cost_points, cost_rows, prepare
from lra.reports.sections.approximation_lab import approximation_data, approximation_table
from lra.reports.sections.decoding import decode_data, decode_points, decode_table
from lra.reports.statistics.intervals import Uncertainty
from lra.reports.statistics.power_law import Reach
from lra.reports.tables.costs import (
    busy,
    crossover_table,
    efficiency_table,
    growth_table,
    measured_crossover,
)
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.table import to_csv, to_markdown
from lra.results.finish import conclusions
from tests.reports.rows_of_tables import rows_in

WHY = "waited for a processor (20 of 20 samples)"
TIMED = ("time", "tokens_per_second", "reference_time", "time_ratio")


def shaken(rows: list[dict[str, Any]], factor: float = 1.0) -> list[dict[str, Any]]:
    """The same rows, disturbed: `factor` times too long, and labelled."""
    for row in rows:
        if row["metric"] in TIMED:
            row["labels"] = {**row["labels"], "disturbed": WHY}
        if row["metric"] in ("time", "time_ratio"):
            row["value"] *= factor
            row["samples"] = [s * factor for s in row["samples"]]
    return rows


def cells(make: SimpleNamespace, *, disturbed: tuple[int, ...] = (), **columns: Any) -> list[Any]:
    """Linear time, 1 ms at 256 tokens; SDPA is quadratic, and meets it at 1024."""
    rows = []
    for n in (256, 512, 1024, 2048, 4096):
        seconds = n / 256e3
        beside = {"sdpa": seconds * n / 1024}
        cell = make.timing("linear", n, seconds, references=beside, noise=0.01, batch=1, **columns)
        rows += shaken(cell, 15.0) if n in disturbed else cell
    return rows


def points(rows: list[Any], make: SimpleNamespace) -> list[CostPoint]:
    (part,) = by_setting(cost_rows(prepare(make.frame(*rows))))
    return cost_points(part.rows)


@pytest.mark.parametrize("at", [256, 512, 1024, 2048, 4096])
def test_no_exponent_comes_from_a_disturbed_length(make: SimpleNamespace, at: int) -> None:
    table = growth_table(points(cells(make, disturbed=(at,)), make))
    exponent, last = table.rows[0].entries[:2]
    assert exponent.value == pytest.approx(1.0, abs=0.05)
    assert last.value == pytest.approx(1.0, abs=0.05)
    assert exponent.facts["points"] == 4
    assert any(f"excludes the time at {at:,} tokens" in note for note in exponent.notes)
    memory = table.rows[0].entries[2]
    assert memory.facts["points"] == 5  # bytes are counted, whatever the clock did


def test_too_few_undisturbed_lengths_give_no_exponent(make: SimpleNamespace) -> None:
    found = points(cells(make, disturbed=(512, 1024, 2048, 4096)), make)
    table = growth_table(found)
    assert table.rows[0].entries[0].value is None
    data = scaling_data(found, "step", "time")
    assert data["exponent"].isna().all()
    figure = scaling_figure(data, looks(["linear"]))
    (label,) = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "no exponent" in label
    plt.close(figure)


def test_no_crossover_comes_from_a_disturbed_length(make: SimpleNamespace) -> None:
    quiet = measured_crossover(points(cells(make), make), "sdpa")
    assert quiet.reach is Reach.within
    assert quiet.length == pytest.approx(1024, rel=0.1)
    kept = points(cells(make, disturbed=(4096,)), make)
    found = measured_crossover(kept, "sdpa")
    assert found.longest == 2048
    assert found.length == pytest.approx(1024, rel=0.1)
    table = crossover_table(kept)
    assert "excludes the time at 4,096 tokens" in " ".join(table.rows[0].entries[0].notes)
    every = crossover_table(points(cells(make, disturbed=(256, 512, 1024, 2048, 4096)), make))
    (entry,) = every.rows[0].entries
    assert entry.value is None
    assert DAGGER in entry.text


@pytest.mark.parametrize("render", [to_markdown, to_html, to_latex, to_csv])
def test_every_form_of_the_table_marks_it(make: SimpleNamespace, render: Any) -> None:
    table = efficiency_table(points(cells(make, disturbed=(512,)), make), "step")
    assert table is not None
    text = render(table)
    assert "another process disturbed this time" in text
    assert (WHY in text) is (render is to_csv)  # causes are in the CSV alone
    sign = r"\dag{}" if render is to_latex else DAGGER
    assert sign in text
    quiet = efficiency_table(points(cells(make), make), "step")
    assert quiet is not None
    assert sign not in render(quiet)


def test_the_figure_rings_it_and_says_why(make: SimpleNamespace) -> None:
    data = scaling_data(points(cells(make, disturbed=(512,)), make), "step", "time")
    assert list(data["disturbed"]) == ["", WHY, "", "", ""]
    figure = scaling_figure(data, looks(["linear"]))
    (axes,) = figure.axes
    rings = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert [list(line.get_xdata()) for line in rings] == [[512.0]]
    line, through, _ = axes.lines
    assert list(line.get_xdata()) == [256.0, 1024.0, 2048.0, 4096.0]
    assert list(through.get_xdata()) == list(data["length"])
    assert (line.get_marker() == "None", through.get_marker()) == (False, "None")
    assert any(
        text.get_text().startswith("○ too uncertain, excluded from exponents")
        for text in figure.texts
    )
    plt.close(figure)


def test_small_print_is_two_lines_whatever_happened() -> None:
    names = [f"{'long_' * 4}{i}" for i in range(20)]
    rows = [dict.fromkeys(COLUMNS) | {"model": n, "length": 512, "mode": "step"} for n in names]
    for number, row in enumerate(rows):
        row |= {"status": "skipped", "reason": f"{WHY} {number}"}
    for row, mark in zip(rows, ("processor", "uncertain", ""), strict=False):
        row |= {"value": 1.0 if mark else 0.0, "status": "ok", "mark": mark}
    few = pd.DataFrame(rows[3:4])
    assert why_absent(few) == [f"× skipped, {WHY} 3: {names[3]} at 512"]
    notes = why_absent(pd.DataFrame(rows))
    assert (
        notes[0] == "× no number was measured: 17 skipped; the CSV of this figure has each reason"
    )
    assert notes[1].startswith("◇ time by the processors' clock")
    assert f"the value is 0, which a logarithmic axis cannot show: {names[2]} at 512" in notes[1]
    assert len(notes) == 2


def computed(rows: list[Any], make: SimpleNamespace, times: float, samples: float = 1.0) -> Any:
    """Add the processors' clock to cells: `times` the wall's, whose samples lie so far apart."""
    for row in [row for row in rows if row["metric"] in ("time", "time_ratio")]:
        clock = {"value": times * row["value"], "samples": [times * s for s in row["samples"]]}
        rows.append(row | {"metric": f"processor_{row['metric']}"} | clock)
        rows[-1]["labels"] = {k: v for k, v in row["labels"].items() if k != "disturbed"}
        if "disturbed" in row["labels"]:
            row["samples"] = [s * samples ** (i % 2) for i, s in enumerate(row["samples"])]
    return points(rows, make)


@pytest.mark.parametrize(
    ("times", "apart", "mark", "told"),
    [
        (0.9, 1.5, "", f"0.50 {DAGGER}"), (0.9, 3.0, "processor", "0.55 ◇"),
        (0.4, 1.0, "processor", "too uncertain [0.20"),
    ],
)  # fmt: skip
def test_both_clocks_decide_what_stands(
    make: SimpleNamespace, times: float, apart: float, mark: str, told: str
) -> None:
    rows = cells(make)
    for row in rows:
        if row["length"] == 512 and row["metric"] in TIMED:
            row["labels"] = {**row["labels"], "disturbed": WHY}
    found = computed(rows, make, times, apart)
    data = scaling_data(found, "step", "time")
    assert [*data["mark"]] == ["", mark, "", "", ""]
    assert data["exponent_low"].iloc[0] < 1.0 < data["exponent_high"].iloc[0]
    assert measured_crossover(found, "sdpa").longest == 4096
    figure = scaling_figure(data, looks(["linear"]))
    line, *others = figure.axes[0].lines
    assert len(line.get_xdata()) == 5
    around = [each for each in others if each.get_marker() == "D"]
    assert [list(each.get_xdata()) for each in around] == [[512.0]] * bool(mark)
    assert bool(mark) is any("processors' clock" in text.get_text() for text in figure.texts)
    plt.close(figure)
    table = efficiency_table(found, "step")
    assert told in table.rows[0].entries[1].text
    assert table.caption.startswith("Other processes disturbed ")
    assert busy(points(cells(make), make)) == ""


@pytest.mark.parametrize("times", [0.8, 1.0, 1.25])
def test_an_interval_reaches_beyond_both_clocks(make: SimpleNamespace, times: float) -> None:
    wall, other = 2.0, 2.0 * times  # of the ratio at 512 tokens
    low, high = sorted((wall * wall / other, other * other / wall))
    (quiet,) = (p.time_ratio["sdpa"] for p in points(cells(make), make) if p.length == 512)
    assert quiet.other is None
    found = computed(shaken(cells(make)), make, times)
    (busy_one,) = (p.time_ratio["sdpa"] for p in found if p.length == 512)
    interval = busy_one.interval()
    assert interval.low < min(wall, other) <= max(wall, other) < interval.high
    if times != 1.0:
        assert interval.low == pytest.approx(min(low, high), rel=0.03)
        assert interval.high == pytest.approx(max(low, high), rel=0.03)


def test_a_crossover_and_an_exponent_count_both_clocks(make: SimpleNamespace) -> None:
    quiet = measured_crossover(points(cells(make), make), "sdpa")
    found = computed(shaken(cells(make)), make, 0.8)
    busy_one = measured_crossover(found, "sdpa")
    assert busy_one.length == quiet.length
    # SDPA is met at 1,024 tokens by one clock, at 819 by the other
    assert (busy_one.interval.low, busy_one.interval.high) == pytest.approx((733, 1145), rel=0.03)
    assert busy_one.interval.source == Uncertainty.load
    for make_table in (growth_table, crossover_table):
        table = make_table(found)
        assert table.rows[0].entries[0].text.endswith(DAGGER)
        assert table.caption.startswith("Other processes disturbed")
        quiet_table = make_table(points(cells(make), make))
        assert DAGGER not in quiet_table.rows[0].entries[0].text + quiet_table.caption


def test_memory_stays_where_a_time_was_too_long(make: SimpleNamespace) -> None:
    rows = cells(make)
    (time,) = [row for row in rows if row["length"] == 4096 and row["metric"] == "time"]
    time |= {"value": None, "status": "skipped", "reason": "one step took 9 s", "samples": []}
    last = points([row for row in rows if row["metric"] != "time_ratio"], make)[-1]
    assert (last.time.ok, last.memory.ok) == (False, True)
    assert scaling_data([last], "step", "memory")["value"].notna().all()


def test_the_terminal_says_so(make: SimpleNamespace) -> None:
    told = "\n".join(map(to_markdown, conclusions(make.frame(*cells(make, disturbed=(4096,))))))
    assert "excludes the time at 4,096 tokens" in told


def test_a_run_lists_it(make: SimpleNamespace) -> None:
    rows = make.frame(*cells(make, disturbed=(512,)))
    (plan,) = plan_runs(rows_in(rows), sweep="s", cells={})
    assert plan.summary["disturbed/at_512_speed_step_time"] == WHY
    assert plan.summary["disturbed/at_512_speed_step_time_ratio_against_sdpa"] == WHY
    (disturbed,) = set(rows[rows["length"] == 512]["cell"])
    assert plan.config["disturbed_cells"] == [disturbed]


def test_decoding_marks_it_and_fits_without(make: SimpleNamespace) -> None:
    rows = []
    for n in (256, 512, 1024, 2048):
        cell = {"runner": "decode", "mode": "state", "model": "linear", "length": n}
        labels, factor = ({"disturbed": WHY}, 15.0) if n == 512 else ({}, 1.0)
        seconds = 1e-3 * n * factor
        rows.append(make.row("token_time", seconds, samples=[seconds] * 3, labels=labels, **cell))
        rows.append(make.row("batch_size", 1.0, **cell))
    found = decode_points(prepare(make.frame(*rows)))
    assert decode_data(found, "token_time")["exponent"].iloc[0] == pytest.approx(1.0)
    table = decode_table(found)
    assert [DAGGER in entry.text for entry in table.rows[0].entries] == [False, True, False, False]


def test_approximations_mark_it(make: SimpleNamespace) -> None:
    rows = []
    for budget in ("16", "32"):
        cell = {"runner": "approximation", "mode": "random", "model": "performer", "length": 256}
        labels = {"budget": budget, "option": "features", "target": "softmax", "layer": "0"}
        rows.append(make.row("output_error", 0.5, samples=[0.5], labels=labels, **cell))
        labels = labels | ({"disturbed": WHY} if budget == "32" else {})
        for metric in ("core_time", "core_time_ratio"):
            rows.append(make.row(metric, 0.1, samples=[0.1] * 3, labels=labels, **cell))
    data = approximation_data(prepare(make.frame(*rows)))
    assert dict(zip(data["budget"], data["disturbed"], strict=True)) == {16: "", 32: WHY}
    table = approximation_table(data, "random")
    text = to_markdown(table)
    assert text.count(f" {DAGGER}") == 3  # time, speed, and the note

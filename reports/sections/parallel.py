"""Show training steps on several processes: tokens per second, efficiency and bytes sent.

A line is a model, and "sharded" if its processes also share its parameters. Every line of a model
begins with the measurement of one process.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from lra.reports.figures.drawing import Look, looks
from lra.reports.figures.lines import LineDrawing
from lra.reports.figures.ticks import length_axis
from lra.reports.labels import name_with
from lra.reports.rows import Value, ambiguous, by_setting, merge, model_order
from lra.reports.sections.generic import generic_tables
from lra.reports.sections.section import LeftOut, PagesPart, Part, alike
from lra.reports.statistics.intervals import percentiles

QUANTITIES = {
    "tokens_per_second": "tokens per second, all processes",
    "scaling_efficiency": "efficiency",
    "bytes_sent_per_step": "bytes sent by one process in a step",
}
"""Metrics of the panels, and the labels of their axes."""
LOADS = {
    "weak": "weak scaling: each process has a batch",
    "strong": "strong scaling: all processes share a batch",
}
FIRST = (*QUANTITIES, "fitting_length", "tokens_per_second_per_device",
         "bytes_sent_per_step_in_total", "peak_tensor_bytes")  # fmt: skip
"""Metrics that come first in the table; earlier versions of lra wrote the fourth."""
TOGETHER = ("processes", "sharded")
"""Labels of rows of several processes."""
OPTIONS = tuple(f"processes.{label}" for label in TOGETHER)
"""The names of the options with the same values as these labels."""
COLUMNS = (
    "mode", "quantity", "model", "processes", "value", "p20", "p80", "status", "reason",
    "disturbed", "mark",
)  # fmt: skip
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def parallel_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the final rows of steps, with the columns `line` and `processes`.

    A row of one process is repeated for each line of its model.
    """
    final = rows[(rows["runner"] == "parallel") & rows["step"].isna()]
    records: list[dict[str, Any]] = []
    lines: dict[tuple[str, ...], dict[str, None]] = {}
    for row in final.to_dict("records"):
        record = {str(key): value for key, value in row.items()}
        record["processes"] = int(row["labels"].get("processes", 1))
        sharing = ("sharded",) if row["labels"].get("sharded") == "true" else ()
        record["line"] = name_with(row, *sharing, without=OPTIONS)
        records.append(record)
        if record["processes"] > 1:
            lines.setdefault(_model_key(record), {})[record["line"]] = None
    repeated = []
    for record in records:
        lines_of_row = [record["line"]]
        if record["processes"] == 1:
            lines_of_row = [*lines.get(_model_key(record), lines_of_row)]
        repeated += [{**record, "line": line} for line in lines_of_row]
    return pd.DataFrame(repeated, columns=[*rows.columns, "processes", "line"])


def _model_key(record: dict[str, Any]) -> tuple[str, ...]:
    """Return task, mode and model of a record, which all lines of the model share."""
    return str(record["task"]), str(record["mode"]), name_with(record, without=OPTIONS)


def parallel_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a record for each mode, quantity, line and number of processes, also for failures.

    The rows are those of one setting and length, from `parallel_rows`.
    """
    records = []
    for mode in LOADS:
        of_mode = rows[rows["mode"] == mode]
        for quantity in QUANTITIES:
            panel = [*_panel_records(of_mode, mode, quantity)]
            # a panel with only failures and zeros is omitted
            if any(record["value"] for record in panel):
                records += panel
    return pd.DataFrame(records, columns=list(COLUMNS))


def _panel_records(rows: pd.DataFrame, mode: str, quantity: str) -> Iterator[dict[str, Any]]:
    """Yield the records of one panel; a failed run has its reason in a row of tokens_per_second."""
    failed = (rows["metric"] == "tokens_per_second") & (rows["status"] != "ok")
    if quantity == "scaling_efficiency":  # a single process has no efficiency
        failed &= rows["processes"] > 1
    measured = rows[(rows["metric"] == quantity) | failed]
    measured = measured.sort_values("processes", kind="stable")
    for line in model_order([str(name) for name in measured["line"]]):
        for processes, part in measured[measured["line"] == line].groupby("processes"):
            value = _merged_value(part.to_dict("records"))
            p20, p80 = percentiles(value.samples) if len(value.samples) > 1 else (None, None)
            yield {
                "mode": mode, "quantity": quantity, "model": line, "processes": processes,
                "value": value.value, "p20": p20, "p80": p80, "status": value.status,
                "reason": value.reason, "disturbed": value.disturbed,
                "mark": value.mark,
            }  # fmt: skip


def _merged_value(records: Sequence[dict[Any, Any]]) -> Value:
    """Return the value over seeds, without a number if several configurations share a name."""
    rows = [{str(key): value for key, value in record.items()} for record in records]
    return ambiguous([], rows) or merge(rows)


def _axis_label(data: pd.DataFrame) -> tuple[str, float]:
    """Return the label of the vertical axis, and the factor of its unit."""
    quantity = str(data["quantity"].iloc[0])
    if quantity != "bytes_sent_per_step":
        return QUANTITIES[quantity], 1.0
    high = float(data[["value", "high"]].astype(float).max().max())
    unit, size = next((u, size) for u, size in _UNITS if high >= size or size == 1)
    return f"{QUANTITIES[quantity]} ({unit})", 1 / size


def _draw_ideal(axes: Axes, data: pd.DataFrame) -> None:
    """Draw a line at efficiency 1, with room above it; other quantities have no ideal."""
    if data["quantity"].iloc[0] == "scaling_efficiency":
        axes.axhline(1.0, color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.08))


def _scale_axis(axes: Axes, numbers: Sequence[int]) -> None:
    """Make the horizontal axis one of numbers of processes."""
    length_axis(axes, numbers)
    if len(numbers) <= 6:  # few numbers all get a tick, also those that are no power of two
        axes.xaxis.set_major_locator(FixedLocator([float(n) for n in numbers]))


def _finding(parts: list[pd.DataFrame]) -> str:
    """Return a title: how many times the tokens of one process the most processes train."""
    rates = pd.concat(parts)
    rates = rates[(rates["quantity"] == "tokens_per_second") & rates["value"].notna()]
    table = rates.pivot(index=["mode", "model"], columns="processes", values="value")
    table = table.astype(float).dropna()
    numbers = sorted({int(n) for n in rates["processes"]} & {*table.columns})
    if numbers[:1] != [1] or len(numbers) < 2 or table.empty:
        return ""
    gains = sorted({f"{gain:.1f}" for gain in table.iloc[:, -1] / table[1]}, key=float)
    most, gain = numbers[-1], " to ".join(dict.fromkeys((gains[0], gains[-1])))
    return f"{most} processes train {gain} times as many tokens per second as one process"


def parallel_figure(data: pd.DataFrame, looks_of: dict[str, Look], subtitle: str = "") -> Figure:
    """Return a figure of data from `parallel_data`: a panel for each quantity and mode.

    Bands are from the 20th to the 80th percentile of the samples. A cross marks a failure, which a
    note under the figure explains.
    """
    positive = data[data["value"].astype(float) > 0]  # one page of several may lack some panels
    drawn = data.merge(positive[["mode", "quantity"]].drop_duplicates())
    order = drawn["quantity"].map([*QUANTITIES].index).sort_values(kind="stable").index
    ideal = "dashed: ideal efficiency" * ("scaling_efficiency" in set(positive["quantity"]))
    draw = LineDrawing(
        title="Training steps on several processes", panel=("mode", "quantity"), x="processes",
        finding=_finding,
        across="processes", along=_axis_label, scale=_scale_axis, guide=_draw_ideal,
        place="number of processes", words=lambda _, place: (LOADS[place[0]], ""),
        columns=drawn["mode"].nunique(),
        from_zero=True, subtitle=lambda _: "; ".join(filter(None, (subtitle, ideal))),
    )  # fmt: skip
    return draw(drawn.loc[order].rename(columns={"p20": "low", "p80": "high"}), looks_of)


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the figures of each setting, and the table of all metrics."""
    stepped = parallel_rows(rows)
    if stepped.empty:
        return
    looks_of = looks(list(dict.fromkeys(stepped["line"])))  # looks of lines, not of rows' names
    parts = by_setting(stepped)
    for part in parts:
        where = f" ({part.title})" if len(parts) > 1 else ""
        timed = part.rows[part.rows["mode"].isin(list(LOADS))]
        lengths = sorted({int(n) for n in timed["length"]})
        for length in lengths:
            name = f"parallel{part.suffix}{f'-{length}' if len(lengths) > 1 else ''}"
            data = parallel_data(timed[timed["length"] == length])
            if data.empty:
                yield LeftOut(name, "all training steps on several processes failed")
            subtitle = f"{part.title}, length {length:,}"
            yield PagesPart(
                name, f"Training steps on several processes, length {length:,}{where}",
                "tokens per second, efficiency and bytes sent, against the number of processes",
                alike(partial(parallel_figure, looks_of=looks_of, subtitle=subtitle)),
                along="processes", data=data,
            )  # fmt: skip
    measured = rows[rows["runner"] == "parallel"]
    shown_by_labels = (*OPTIONS, "processes.context")  # the last is of earlier versions of lra
    plain = [name_with(row, without=shown_by_labels) for row in measured.to_dict("records")]
    yield from generic_tables(measured.assign(name=plain), {"parallel": FIRST})

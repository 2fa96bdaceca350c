"""What several processes gain: rates, efficiency and bytes sent.

A line is a model, with how its processes work together where they do more than share a batch; one
process alone begins each line of its model, for there is nothing to share.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from lra.reports.figures.drawing import Look, looks, style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.figures.scaling import draw_crosses, draw_line, strip, why_absent
from lra.reports.figures.ticks import length_axis
from lra.reports.labels import named
from lra.reports.rows import Value, ambiguous, merged, model_order, settings
from lra.reports.sections.generic import generic_tables
from lra.reports.sections.section import LeftOut, PagesPart, Part, alike
from lra.reports.statistics.intervals import percentiles

QUANTITIES = {
    "tokens_per_second": "tokens per second, of all",
    "scaling_efficiency": "efficiency",
    "bytes_sent_per_step": "sent by a process in a step",
}
"""Panels of each load, and what stands on their axes."""
LOADS = {"weak": "weak: each has a batch", "strong": "strong: all share a batch"}
FIRST = (*QUANTITIES, "fitting_length", "tokens_per_second_per_device",
         "bytes_sent_per_step_in_total", "peak_tensor_bytes")  # fmt: skip
"""Metrics that come first in the table; the fourth is of older rows."""
TOGETHER = ("processes", "sharded")
"""Labels of rows of several processes."""
OPTIONS = tuple(f"processes.{label}" for label in TOGETHER)
"""Names of the options that these are."""
COLUMNS = (
    "mode", "quantity", "model", "processes", "value", "p20", "p80", "status", "reason",
    "disturbed", "mark",
)  # fmt: skip
_PLOT = (2.45, 1.95)
"""Inches."""
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def parallel_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the final rows of steps on several processes, with the line and the place of each.

    Rows of one process stand on each line of their model, once for each.

    Args:
        rows: As `lra.reports.rows.prepare` returns them.

    Returns:
        The rows, with `line` and `processes`.
    """
    final = rows[(rows["runner"] == "parallel") & rows["step"].isna()]
    records: list[dict[str, Any]] = []
    lines: dict[tuple[str, ...], dict[str, None]] = {}
    for row in final.to_dict("records"):
        record = {str(key): value for key, value in row.items()}
        record["processes"] = int(row["labels"].get("processes", 1))
        sharing = ("sharded",) if row["labels"].get("sharded") == "true" else ()
        record["line"] = named(row, *sharing, without=OPTIONS)
        records.append(record)
        if record["processes"] > 1:
            lines.setdefault(_model(record), {})[record["line"]] = None
    placed = [
        {**record, "line": line}
        for record in records
        for line in (
            lines.get(_model(record), [record["line"]])
            if record["processes"] == 1
            else [record["line"]]
        )
    ]
    return pd.DataFrame(placed, columns=[*rows.columns, "processes", "line"])


def _model(record: dict[str, Any]) -> tuple[str, ...]:
    """Return what the lines of one model have in common."""
    return str(record["task"]), str(record["mode"]), named(record, without=OPTIONS)


def parallel_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a record for each load, quantity, line and number of processes; failures included.

    Args:
        rows: As `parallel_rows` returns them, of one setting and length.
    """
    records = []
    for mode in LOADS:
        of_mode = rows[rows["mode"] == mode]
        for quantity in QUANTITIES:
            panel = [*_panel(of_mode, mode, quantity)]
            if any(record["value"] for record in panel):  # neither reasons nor zeros alone
                records += panel
    return pd.DataFrame(records, columns=list(COLUMNS))


def _panel(rows: pd.DataFrame, mode: str, quantity: str) -> Iterator[dict[str, Any]]:
    whole = (rows["metric"] == "tokens_per_second") & (rows["status"] != "ok")
    if quantity == "scaling_efficiency":  # which one process does not have
        whole &= rows["processes"] > 1
    kept = (rows["metric"] == quantity) | whole
    measured = rows[kept].sort_values("processes", kind="stable")
    for line in model_order([str(name) for name in measured["line"]]):
        for processes, part in measured[measured["line"] == line].groupby("processes"):
            value = _value(part.to_dict("records"))
            p20, p80 = percentiles(value.samples) if len(value.samples) > 1 else (None, None)
            yield {
                "mode": mode, "quantity": quantity, "model": line, "processes": processes,
                "value": value.value, "p20": p20, "p80": p80, "status": value.status,
                "reason": value.reason, "disturbed": value.disturbed,
                "mark": value.mark,
            }  # fmt: skip


def _value(records: Sequence[dict[Any, Any]]) -> Value:
    rows = [{str(key): value for key, value in record.items()} for record in records]
    return ambiguous([], rows) or merged(rows)


def parallel_figure(data: pd.DataFrame, looks_of: dict[str, Look], subtitle: str = "") -> Figure:
    """Draw what `parallel_data` returned: a row of panels for each load.

    Bands are the 20th to 80th percentile of the samples. A cross marks a number of processes
    without a number, explained under the figure.
    """
    positive = data[data["value"].astype(float) > 0]  # a page of many models may lack a panel
    keys = list(dict.fromkeys(positive[["mode", "quantity"]].itertuples(index=False, name=None)))
    across = max(sum(mode == load for mode, _ in keys) for load in dict(keys))
    drawn = data.assign(length=data["processes"])
    with style():
        grid = sheet(len(keys), plot=_PLOT, across=across)
        if grid.across < across:  # of a narrow page: loads side by side, a row for each quantity
            keys.sort(key=lambda key: [*QUANTITIES].index(key[1]))
        handles: dict[str, Line2D] = {}
        for axes, (mode, quantity) in zip(grid.axes, keys, strict=True):
            part = drawn[(drawn["mode"] == mode) & (drawn["quantity"] == quantity)]
            for name, line in _draw_quantity(axes, part, looks_of, quantity).items():
                handles.setdefault(name, line)
            axes.set_title(LOADS[mode], size=8.5)
        notes = drawn.drop_duplicates(["model", "length", "status", "reason", "mark"])
        return arrange(
            grid,
            title="Training steps on several processes",
            subtitle="; ".join(filter(None, (subtitle, _ideal(keys)))),
            handles=[handles[name] for name in model_order(list(handles))],
            notes=why_absent(notes, along="number of processes", exponent=False),
        )


def _ideal(keys: Sequence[tuple[str, str]]) -> str:
    drawn = any(quantity == "scaling_efficiency" for _, quantity in keys)
    return "dashed: ideal efficiency" if drawn else ""


def _draw_quantity(
    axes: Axes, data: pd.DataFrame, looks_of: dict[str, Look], quantity: str
) -> dict[str, Line2D]:
    label, high = QUANTITIES[quantity], float(data[["value", "p80"]].astype(float).max().max())
    unit_size: float = 1
    if quantity == "bytes_sent_per_step":
        unit, unit_size = next((u, size) for u, size in _UNITS if high >= size or size == 1)
        label += f" ({unit})"
    elif quantity == "scaling_efficiency":
        high = max(high, 1.0)
        axes.axhline(1.0, color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    names = list(dict.fromkeys(data["model"]))
    handles = {
        name: draw_line(axes, data[data["model"] == name], looks_of[name], name, exponent=False)
        for name in names
    }
    for name in names:  # the band of one point alone
        banded = data[(data["model"] == name) & data["p20"].notna()]
        if len(banded) == 1:
            (point,) = banded.to_dict("records")
            axes.vlines(point["length"], point["p20"], point["p80"], looks_of[name].color, zorder=2)
    _processes_axis(axes, data)
    share, _ = strip(data[data["value"].isna()]["model"].nunique())
    axes.set_ylim(0, 1.08 * high / (1 - share))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit_size:,.12g}"))
    axes.yaxis.set_major_locator(FixedLocator(_ticks(1.08 * high, unit_size)))
    axes.yaxis.set_minor_locator(NullLocator())
    draw_crosses(axes, data, looks_of, names)
    axes.set_ylabel(label)
    return handles


def _ticks(high: float, unit: float) -> list[float]:
    """Return ticks from 0 that are round in a unit, none of them among the crosses."""
    ticks = MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]).tick_values(0, high / unit)
    return [float(tick * unit) for tick in ticks if 0 <= tick * unit <= high]


def _processes_axis(axes: Axes, data: pd.DataFrame) -> None:
    numbers = sorted({int(n) for n in data["length"]})
    length_axis(axes, numbers)
    if len(numbers) <= 6:  # three processes are no power of two, and have their tick
        axes.xaxis.set_major_locator(FixedLocator([float(n) for n in numbers]))
    axes.set_xlabel("processes")


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the figures of every setting, and the table of all metrics."""
    stepped = parallel_rows(rows)
    if stepped.empty:
        return
    looks_of = looks(list(dict.fromkeys(stepped["line"])))  # a line is no one number of processes
    parts = settings(stepped)
    for part in parts:
        where = f" ({part.title})" if len(parts) > 1 else ""
        timed = part.rows[part.rows["mode"].isin(list(LOADS))]
        lengths = sorted({int(n) for n in timed["length"]})
        for length in lengths:
            name = f"parallel{part.suffix}{f'-{length}' if len(lengths) > 1 else ''}"
            data = parallel_data(timed[timed["length"] == length])
            if data.empty:
                yield LeftOut(name, "no number among its steps, only reasons")
            subtitle = f"{part.title}, length {length:,}"
            yield PagesPart(
                name, f"Steps on several processes, length {length:,}{where}",
                "tokens per second, efficiency and bytes sent by processes",
                alike(partial(parallel_figure, looks_of=looks_of, subtitle=subtitle)),
                along="processes", data=data,
            )  # fmt: skip
    measured = rows[rows["runner"] == "parallel"]
    labelled = (*OPTIONS, "processes.context")  # of older rows, whose labels say it too
    plain = [named(row, without=labelled) for row in measured.to_dict("records")]
    yield from generic_tables(measured.assign(name=plain), {"parallel": FIRST})

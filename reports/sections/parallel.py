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
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


def parallel_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the final rows of steps on several processes, with the line and the place of each.

    Rows of one process stand on each line of their model, once for each.

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
        record["line"] = name_with(row, *sharing, without=OPTIONS)
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
    return str(record["task"]), str(record["mode"]), name_with(record, without=OPTIONS)


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
    return ambiguous([], rows) or merge(rows)


def _axis(data: pd.DataFrame) -> tuple[str, float]:
    quantity = str(data["quantity"].iloc[0])
    if quantity != "bytes_sent_per_step":
        return QUANTITIES[quantity], 1.0
    high = float(data[["value", "high"]].astype(float).max().max())
    unit, size = next((u, size) for u, size in _UNITS if high >= size or size == 1)
    return f"{QUANTITIES[quantity]} ({unit})", 1 / size


def _guide(axes: Axes, data: pd.DataFrame) -> None:
    if data["quantity"].iloc[0] == "scaling_efficiency":
        axes.axhline(1.0, color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        axes.set_ylim(top=max(axes.get_ylim()[1], 1.08))


def _scale(axes: Axes, numbers: Sequence[int]) -> None:
    length_axis(axes, numbers)
    if len(numbers) <= 6:  # three processes are no power of two, and have their tick
        axes.xaxis.set_major_locator(FixedLocator([float(n) for n in numbers]))


def _finding(parts: list[pd.DataFrame]) -> str:
    """Return how many times the tokens of one process the most processes train in a second."""
    rates = pd.concat(parts)
    rates = rates[(rates["quantity"] == "tokens_per_second") & rates["value"].notna()]
    table = rates.pivot(index=["mode", "model"], columns="processes", values="value")
    table = table.astype(float).dropna()
    numbers = sorted({int(n) for n in rates["processes"]} & {*table.columns})
    if numbers[:1] != [1] or len(numbers) < 2 or table.empty:
        return ""
    gains = sorted({f"{gain:.1f}" for gain in table.iloc[:, -1] / table[1]}, key=float)
    most, gain = numbers[-1], " to ".join(dict.fromkeys((gains[0], gains[-1])))
    return f"{most} processes train {gain} times as many tokens per second as one"


def parallel_figure(data: pd.DataFrame, looks_of: dict[str, Look], subtitle: str = "") -> Figure:
    """Draw what `parallel_data` returned: a row of panels for each quantity, loads side by side.

    Bands are the 20th to 80th percentile of the samples. A cross marks a number of processes
    without a number, explained under the figure.
    """
    positive = data[data["value"].astype(float) > 0]  # a page of many models may lack a panel
    kept = data.merge(positive[["mode", "quantity"]].drop_duplicates())
    order = kept["quantity"].map([*QUANTITIES].index).sort_values(kind="stable").index
    ideal = "dashed: ideal efficiency" * ("scaling_efficiency" in set(positive["quantity"]))
    draw = LineDrawing(
        title="Training steps on several processes", panel=("mode", "quantity"), x="processes",
        finding=_finding,
        across="processes", along=_axis, scale=_scale, guide=_guide, place="number of processes",
        words=lambda _, place: (LOADS[place[0]], ""), columns=kept["mode"].nunique(),
        from_zero=True, subtitle=lambda _: "; ".join(filter(None, (subtitle, ideal))),
    )  # fmt: skip
    return draw(kept.loc[order].rename(columns={"p20": "low", "p80": "high"}), looks_of)


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the figures of every setting, and the table of all metrics."""
    stepped = parallel_rows(rows)
    if stepped.empty:
        return
    looks_of = looks(list(dict.fromkeys(stepped["line"])))  # a line is no one number of processes
    parts = by_setting(stepped)
    for part in parts:
        where = f" ({part.title})" if len(parts) > 1 else ""
        timed = part.rows[part.rows["mode"].isin(list(LOADS))]
        lengths = sorted({int(n) for n in timed["length"]})
        for length in lengths:
            name = f"parallel{part.suffix}{f'-{length}' if len(lengths) > 1 else ''}"
            data = parallel_data(timed[timed["length"] == length])
            if data.empty:
                yield LeftOut(name, "its steps have no number, only reasons for failures")
            subtitle = f"{part.title}, length {length:,}"
            yield PagesPart(
                name, f"Steps on several processes, length {length:,}{where}",
                "tokens per second, efficiency and bytes sent by processes",
                alike(partial(parallel_figure, looks_of=looks_of, subtitle=subtitle)),
                along="processes", data=data,
            )  # fmt: skip
    measured = rows[rows["runner"] == "parallel"]
    labelled = (*OPTIONS, "processes.context")  # of older rows, whose labels say it too
    plain = [name_with(row, without=labelled) for row in measured.to_dict("records")]
    yield from generic_tables(measured.assign(name=plain), {"parallel": FIRST})

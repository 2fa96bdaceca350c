"""Show the speed and memory of one family over the revisions of lra that measured it."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lra.reports.figures.drawing import style
from lra.reports.statistics.intervals import median_interval
from lra.reports.tables.costs import invert, significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import table_of
from lra.reports.tables.table import Column, Entry, Table

SETTING = (
    "device", "precision", "threads", "mode", "causal", "task", "changed_options", "size",
    "positions",
)  # fmt: skip
"""Columns of rows; revisions are compared only if those that rows have are equal."""
QUANTITIES = {"time_ratio": "speed", "peak_tensor_bytes_ratio": "memory"}
TITLES = {"speed": "speed relative to SDPA (×)", "memory": "peak memory relative to SDPA (×)"}
REFERENCE = "sdpa"


class NoTrend(ValueError):
    """No row tells the speed of a family; the message says what would."""


def trend_points(rows: pd.DataFrame, family: str) -> pd.DataFrame:
    """Return speed and memory of a family relative to SDPA, by setting, revision and length.

    A revision is a day and a fingerprint of the sources. Disturbed times are excluded.

    Args:
        rows: rows from `lra.reports.rows.prepare`, of any number of files. Their column
            `changed_options` has the options of the mixer that differ from the defaults.
        family: the family.

    Raises:
        NoTrend: no undisturbed row times the family interleaved with SDPA.
    """
    chosen = rows[
        (rows["family"] == family)
        & rows["metric"].isin([*QUANTITIES])
        & (rows["status"] == "ok")
        & (rows["reference"] == REFERENCE)
        & (rows["disturbed"] == "")
    ]
    if chosen.empty:
        raise NoTrend(
            f"no row times {family} interleaved with {REFERENCE}: run `lra run runner=scaling "
            f"model={family}`, or name files or a folder of published rows with --rows"
        )
    chosen = chosen.assign(day=chosen["created"].dt.strftime("%Y-%m-%d"))
    records: list[dict[str, Any]] = []
    keys = [*(name for name in SETTING if name in chosen), "day", "fingerprint", "length", "metric"]
    for key, part in chosen.groupby(keys, sort=True, dropna=False):
        record = dict(zip(keys, key, strict=True))
        value = float(part["value"].median())
        interval = median_interval([x for samples in part["samples"] for x in samples])
        if record["metric"] == "time_ratio":
            value, interval = 1 / value, invert(interval)
        record |= {"quantity": QUANTITIES[str(record.pop("metric"))], "value": value}
        record["interval"] = interval
        records.append(record)
    return pd.DataFrame(records)


def by_machine(points: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the title of each setting and its points; settings with most revisions first."""
    keys = [name for name in SETTING if name in points]
    parts = [part for _, part in points.groupby(keys, sort=True, dropna=False)]
    parts.sort(key=lambda part: -part["day"].nunique())
    for part in parts:
        first = part.iloc[0]
        direction = "causal" if first["causal"] else "bidirectional"
        size = str(first.get("size", "")).strip("{}").replace("'", "").replace(": ", " ")
        words = (
            first["device"], f"{first['threads']} threads", first["precision"], direction,
            f"{first['mode']} on {first['task']}", size, first["changed_options"],
        )  # fmt: skip
        yield ", ".join(filter(None, map(str, words))), part


def trend_table(points: pd.DataFrame, family: str) -> Table:
    """Return the table of `trend_points`: a line for each revision, a column for each length."""
    lines, lengths = [], sorted(points["length"].unique())
    for title, part in by_machine(points):
        for quantity, heading in TITLES.items():
            of_quantity = part[part["quantity"] == quantity]
            for (day, revision), line in of_quantity.groupby(["day", "fingerprint"], sort=True):
                lines.append((f"{title}: {heading}", f"{day} ({revision})", line))

    def entry(line: pd.DataFrame, length: int) -> Entry:
        """Return the number at a length."""
        found = line[line["length"] == length]
        if found.empty:
            return absent("not run")
        point = found.iloc[0]
        return Entry(
            text=significant(point["value"], 2), value=point["value"], interval=point["interval"]
        )

    columns = [
        (Column(title=f"{n:,}", key=str(n)), lambda line, n=n: entry(line, n)) for n in lengths
    ]
    return table_of(
        lines, columns, title=f"{family} over revisions", stub="day (fingerprint of the sources)",
        caption="Columns are lengths in tokens. Each number is relative to exact attention, timed "
        "interleaved in the same process; lines of one section have the same machine and model.",
    )  # fmt: skip


def trend_figure(points: pd.DataFrame, family: str) -> Figure:
    """Return the figure of the setting with most revisions: speed and memory against the day."""
    title, part = next(by_machine(points))
    with style():
        figure = Figure(figsize=(8.0, 3.2), layout="constrained")
        for axes, (quantity, heading) in zip(figure.subplots(1, 2), TITLES.items(), strict=True):
            of_quantity = part[part["quantity"] == quantity]
            for length, line in [*of_quantity.groupby("length", sort=True)][-6:]:
                by_day = line.groupby("day")["value"].median()
                axes.plot([*by_day.index], [*by_day], marker="o", label=f"{length:,} tokens")
            if quantity == "speed":
                axes.set_yscale("log")
                for axis in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
                    axis(lambda value, _: f"{value:g}")
            else:
                axes.set_ylim(bottom=0)
            axes.set_ylabel(heading)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize="small", frameon=False)
        figure.suptitle(f"{family}: {title}", fontsize="medium", wrap=True)
    return figure

"""Ours beside other public implementations: a table of ratios, and a figure of the same numbers.

Every ratio comes from paired samples, after outputs and gradients were found equal; what computes
another function stands in the table without a ratio.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from lra.reports.figures.drawing import style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.figures.words import wrap
from lra.reports.labels import name_with
from lra.reports.rows import MARKS, Value, short
from lra.reports.sections.section import PagesPart, Part, TablePart, alike
from lra.reports.statistics.intervals import median_interval
from lra.reports.stems import stem
from lra.reports.style import current_style
from lra.reports.tables.costs import dagger, describe_pass, significant
from lra.reports.tables.table import Column, Entry, Table, TableRow
from lra.runners.records import Status

KEY = ["family", "peer", "causal"]
_ROWS = 30
"""Of one figure."""
_NAMES = 2.4
"""Inches."""
LABELS = ("peer", "setting", "version")
PASSES = {"step": "forward and backward pass", "forward": "forward pass"}
DIRECTION = "runner.direction"
"""An option that has a column and words of its own."""
COMPARED = {"step": "Outputs and gradients were"}
COLOURS = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#084594", "#041f4a")
"""Short to long."""


def peer_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of comparisons with peers, their labels as columns.

    Of the lengths that the style in force shows.
    """
    own = rows[rows["runner"] == "peers"].copy()
    if lengths := current_style().style.lengths:
        own = own[own["length"].isin(lengths)].copy()
    own["name"] = [name_with(row, without={DIRECTION}) for row in own.to_dict("records")]
    for name in (*LABELS, "side", "compared_in"):
        own[name] = [labels.get(name, "") for labels in own["labels"]]
    return own


def modes_of(rows: pd.DataFrame) -> list[str]:
    """Return the modes present, training first."""
    return sorted({str(mode) for mode in rows["mode"]}, reverse=True)


Rows = defaultdict[tuple[str, str, bool, int], list[dict[str, Any]]]


def describe(mode: str) -> str:
    """Return what one call of this mode is."""
    return PASSES.get(mode, describe_pass(mode))


def _lines(rows: pd.DataFrame, mode: str) -> list[tuple[str, str, str, bool]]:
    """Return (family, peer, setting, causal) of one mode, in the order of the table."""
    own = rows[(rows["mode"] == mode) & (rows["peer"] != "")]
    keys = own[["name", "peer", "setting", "causal"]].drop_duplicates()
    return sorted((str(n), str(p), str(s), bool(c)) for n, p, s, c in keys.to_numpy())


def _by_place(rows: pd.DataFrame) -> Rows:
    """Return rows by the name, peer and direction of their line, and by their length."""
    places: Rows = defaultdict(list)
    for entry in rows.to_dict("records"):
        row = {str(k): v for k, v in entry.items()}
        places[row["name"], row["peer"], bool(row["causal"]), row["length"]].append(row)
    return places


def _number(rows: Sequence[dict[str, Any]], metric: str) -> dict[str, Any] | None:
    return next((row for row in reversed(rows) if row["metric"] == metric), None)


def _entry(rows: Sequence[dict[str, Any]], metric: str) -> Entry:
    found = _number(rows, metric)
    # A ratio of bytes is missing where that of time says why.
    if found is None and metric == "peer_bytes_ratio":
        found = _number(rows, "peer_speedup")
    if found is None:
        return Entry(text="–")
    if found["status"] != "ok":
        text = "unlike" if _unlike(rows, found) else MARKS[found["status"]]
        return Entry(text=text, status=found["status"], notes=(short(found["reason"]),))
    value = float(found["value"])
    interval = median_interval(found["samples"]) if len(found["samples"]) > 1 else None
    text = significant(value, 3)
    if interval is not None:
        text += f" [{significant(interval.low, 2)}, {significant(interval.high, 2)}]"
    notes = _rounding(rows) if metric == "peer_speedup" else ()
    entry = Entry(text=text, value=value, interval=interval, notes=notes)
    return dagger(entry, Value(value=value, disturbed=found["disturbed"]))


def _unlike(rows: Sequence[dict[str, Any]], found: dict[str, Any]) -> bool:
    """Return whether both were compared and found to differ; what cannot run has no difference."""
    compared = _number(rows, "peer_error") is not None
    return found["status"] == Status.unsupported and compared


def _rounding(rows: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return a note where float32 differs by more than the tolerance, and float64 does not."""
    errors = [row for row in rows if row["metric"] == "peer_error"]
    apart = {row["compared_in"]: float(row["value"]) for row in errors}
    if not {"float32", "float64"} <= apart.keys():
        return ()
    return (
        f"largest relative error {apart['float32']:.1e} in float32 and {apart['float64']:.1e} in "
        "float64: one function, which float32 rounds",
    )


def peer_table(rows: pd.DataFrame, mode: str) -> Table | None:
    """Build the table of one mode: times as ratios, then bytes; lengths are columns."""
    lines = _lines(rows, mode)
    if not lines:
        return None
    own = rows[rows["mode"] == mode]
    lengths = sorted({int(n) for n in own.loc[own["peer"] != "", "length"]})
    panels = {
        "peer_speedup": "time of the peer / time of ours (×): above 1, ours is faster",
        "peer_bytes_ratio": "peak bytes of ours / of the peer (×): below 1, ours needs less",
    }
    made = []
    places = _by_place(own)
    for metric, section in panels.items():
        for name, peer, setting, causal in lines:
            title = f"{name}: {peer} ({setting}{', causal' if causal else ''})"
            entries = tuple(_entry(places[name, peer, causal, n], metric) for n in lengths)
            if metric == "peer_speedup" or any(entry.value is not None for entry in entries):
                made.append(TableRow(title=title, entries=entries, section=section))
    return Table(
        title=f"Beside other implementations, {describe(mode)}",
        caption=(
            "Median over samples taken in turns [interval of the median, 95 % where the number of "
            "samples allows it; timing noise]. "
            f"{COMPARED.get(mode, 'Outputs were')} compared first, at the same length and with "
            "equal weights; what differs is called unlike."
        ),
        stub="ours: peer",
        columns=tuple(Column(title=f"{length:,}", group="tokens") for length in lengths),
        rows=tuple(made),
    )


def speed_data(rows: pd.DataFrame, mode: str) -> pd.DataFrame:
    """Return the measured ratios of time, each with the interval of its median."""
    records = []
    own = rows[(rows["mode"] == mode) & (rows["status"] == "ok")]
    places = _by_place(own)
    for name, peer, setting, causal in _lines(rows, mode):
        for length in sorted({int(n) for n in own["length"]}):
            found = _number(places[name, peer, causal, length], "peer_speedup")
            if found is None:
                continue
            interval = median_interval(found["samples"])
            value = float(found["value"])
            low, high = (interval.low, interval.high) if interval else (value, value)
            shaken = str(found["disturbed"])
            records.append((name, peer, setting, causal, length, value, low, high, shaken))
    columns = ["family", "peer", "setting", "causal", "length", "speedup", "low", "high"]
    columns.append("disturbed")
    return pd.DataFrame(records, columns=columns)


def speed_figure(data: pd.DataFrame, mode: str) -> Figure:
    """Draw one line of dots per peer, darker with length; right of 1 ours is faster."""
    keys = list(data[["family", "peer", "causal"]].drop_duplicates().itertuples(index=False))
    lengths = sorted(data["length"].unique())
    step = max(1, len(COLOURS) // len(lengths))
    colour = {n: COLOURS[min(i * step, len(COLOURS) - 1)] for i, n in enumerate(lengths)}
    with style():
        made = sheet(1, plot=(4.4, max(1.3, 0.3 * len(keys) + 0.1)), across=1, rows=True)
        axes: Axes = made.axes[0]
        axes.axvline(1.0, color="black", linewidth=0.9)
        for row, key in enumerate(keys):
            own = data[(data[["family", "peer", "causal"]] == list(key)).all(axis=1)]
            spread = len(own) - 1 or 1
            for turn, point in enumerate(own.to_dict("records")):
                y = row + 0.5 * (turn / spread - 0.5)
                low, high = float(point["low"]), float(point["high"])
                axes.plot([low, high], [y, y], color="#999999", linewidth=0.8)
                dot = colour[point["length"]]
                fill = "white" if point["disturbed"] else dot
                x = [float(point["speedup"])]
                axes.plot(x, [y], "o", markersize=4, color=dot, markerfacecolor=fill)
        axes.set_yticks(range(len(keys)))
        names = [(f"{k.family}{', causal' if k.causal else ''}", str(k.peer)) for k in keys]
        lines = [[wrap(part, _NAMES, 6.5, most=3)[:1] or [""] for part in name] for name in names]
        axes.set_yticklabels(["\n".join(p[0] for p in two) for two in lines])
        axes.tick_params(axis="y", labelsize=6.5)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(len(keys) - 0.4, -0.6)
        axes.set_xscale("log")
        low, high = data["low"].min(), data["high"].max()
        axes.set_xlim(min(0.5, low / 1.2), max(2.0, high * 1.2))
        decades = math.log10(high / low) > 1.5
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if decades else (1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("time of the peer / time of ours: right of 1, ours is faster")
        handles = [
            axes.plot([], [], "o", markersize=4, color=colour[n], label=f"{n:,} tokens")[0]
            for n in lengths
        ]
        if (data["disturbed"] != "").any():
            handles += axes.plot([], [], "o", markersize=4, color="0.3", markerfacecolor="white",
                                 label="open: disturbed while it was measured")  # fmt: skip
        return arrange(
            made,
            title=f"Speed beside other implementations, {describe(mode)}",
            subtitle="medians of paired ratios; grey: interval of the median, timing noise",
            handles=handles,
        )


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figure of every mode."""
    compared = peer_rows(rows)
    for mode in modes_of(compared):
        table = peer_table(compared, mode)
        if table is None:
            continue
        yield TablePart(f"peers-{stem(mode)}", table.title, table)
        text = f"speed beside other implementations, {describe(mode)}"
        yield PagesPart(
            f"peers-speed-{stem(mode)}", f"{text[0].upper()}{text[1:]}", text,
            alike(partial(speed_figure, mode=mode)), panel=KEY, panels=_ROWS, lines=None,
            number="speedup", data=speed_data(compared, mode),
        )  # fmt: skip

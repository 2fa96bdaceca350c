"""Time and peak memory of one sequence against its length, on doubly logarithmic axes."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lra.reports.figures.drawing import Look, legend_name
from lra.reports.figures.ticks import in_bytes, length_axis, seconds
from lra.reports.figures.words import DARK, drawable
from lra.reports.rows import DIAMOND, MARKS, PROCESSOR, UNCERTAIN, CostPoint, Value, model_order
from lra.reports.statistics.intervals import percentiles
from lra.reports.statistics.power_law import FEWEST, UNRESOLVED, PowerLaw, bounds
from lra.reports.style import current_style
from lra.reports.tables.costs import fit_values

QUANTITIES = {"time": "time per sequence", "memory": "peak tensor memory per sequence"}
COLUMNS = (
    "model", "mode", "quantity", "length", "value", "p20", "p80", "unit", "batch_size", "status",
    "reason", "disturbed", "mark", "exponent", "exponent_low", "exponent_high",
    "exponent_interval_source",
)  # fmt: skip
_NAMED = 4
"""Models that one note names."""
_LINES, _LINE = 2, 110
"""Lines of all notes, and letters of one."""
_NAME = 6.5
"""Points of a name next to its crosses."""
_STRIP = 0.052
"""Of a plot's height: a line of crosses."""
UNITS = {"time": "s", "memory": "B", "token_time": "s", "state_bytes": "B"}
"""Of what may be drawn against length."""


def scaling_data(points: Sequence[CostPoint], mode: str, quantity: str) -> pd.DataFrame:
    """Return the numbers of one figure: one line per model and length, failures included.

    Args:
        points: of one setting.
        mode: forward, step …
        quantity: time or memory; both of one sequence, i.e. of a batch divided by its size.
    """
    records: list[dict[str, Any]] = []
    of_mode = [p for p in points if p.mode == mode]
    for name in model_order([p.model for p in of_mode]):
        line = sorted((p for p in of_mode if p.model == name), key=lambda p: p.length)
        costs = [p.per_sequence(p.time if quantity == "time" else p.memory) for p in line]
        positions = [(p.length, p.batch_size) for p in line]
        records += line_records(name, mode, quantity, positions, costs)
    return pd.DataFrame(records, columns=list(COLUMNS))


def line_records(
    model: str,
    mode: str,
    quantity: str,
    positions: Sequence[tuple[int, int | None]],
    costs: Sequence[Value],
) -> list[dict[str, Any]]:
    """Return one line of a figure, a record per point, with the exponent that fits them all.

    Args:
        model: its name.
        mode: of its points.
        quantity: one of `UNITS`.
        positions: length and batch size of each point, lengths rising.
        costs: what is drawn there.
    """
    fit = _fit([length for length, _ in positions], costs)
    records = []
    for (length, batch_size), cost in zip(positions, costs, strict=True):
        record: dict[str, Any] = dict.fromkeys(COLUMNS)
        record |= {"model": model, "mode": mode, "quantity": quantity}
        record |= {"length": length, "value": cost.value, "unit": UNITS[quantity]}
        record |= {"batch_size": batch_size, "status": cost.status, "reason": cost.reason}
        record |= {"disturbed": cost.disturbed, "mark": cost.mark}
        records.append(record | _spread(cost, fit))
    return records


def _fit(lengths: Sequence[int], costs: Sequence[Value]) -> PowerLaw | None:
    # nothing grows from zero, and a state may have no bytes
    points = [(n, c) for n, c in zip(lengths, costs, strict=True) if c.value and not c.uncertain]
    return fit_values(points) if len(points) > 1 else None


def _spread(cost: Value, fit: PowerLaw | None) -> dict[str, Any]:
    record: dict[str, Any] = {}
    if len(cost.samples) > 1:
        record["p20"], record["p80"] = percentiles(cost.samples)
    if fit is not None:
        record["exponent"] = fit.exponent if fit.resolved else None
        if fit.interval is not None:
            record["exponent_low"], record["exponent_high"] = fit.interval.low, fit.interval.high
            record["exponent_interval_source"] = str(fit.interval.source)
    return record


def after_names() -> str:
    """Return what follows the names in a legend; nothing where the style leaves it out."""
    exponents = current_style().style.exponents
    return "after each name: exponent of length [95 % interval]" if exponents else ""


def without_zeros(data: pd.DataFrame) -> pd.DataFrame:
    """Leave out zeros, which a logarithmic axis cannot show."""
    return data[~(data["value"].astype(float) <= 0)]


def by_last_value(data: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Order the legend as the lines end: the dearest at the longest length first.

    Models that the style in force puts in an order come before these.
    """

    def rank(name: str) -> tuple[int, float, str]:
        place = current_style().rank(name)
        points = data[(data["model"] == name) & data["value"].notna()]
        if points.empty:
            return (place, -np.inf, name)
        last = points.iloc[-1]
        exponent = last["exponent"] if pd.notna(last["exponent"]) else 1.0
        longest = float(data["length"].max())
        # a line that ends early is ranked where its fitted growth would take it
        grown = float(last["value"]) * (longest / float(last["length"])) ** float(exponent)
        return (place, -grown, name)

    return sorted(names, key=rank)


def draw_line(
    axes: Axes, data: pd.DataFrame, look: Look, name: str, *, exponent: bool = True
) -> Line2D:
    """Draw one model; its label is its name, with the fitted exponent unless that is unwanted.

    What was disturbed has a bar of the same width as the band. A number that is uncertain is no
    point of the line, but an open circle on a thin dotted one; one of the processors' clock has a
    diamond around it.
    """
    good = data[data["value"].notna()]
    sound = good.drop(rows_with_mark(good, UNCERTAIN).index)
    label = _label(name, good) if exponent and current_style().style.exponents else name
    (line,) = axes.plot(
        sound["length"].astype(float), sound["value"].astype(float), color=look.color,
        marker=look.marker, markevery=max(1, len(sound) // 10), markeredgecolor=look.color,
        markerfacecolor="white" if look.marker in "sDv" else look.color, zorder=3,
        label=legend_name(label), linestyle=(0, look.dashes) if look.dashes else "-",
    )  # fmt: skip
    if len(sound) < len(good):
        x, y = good["length"].astype(float), good["value"].astype(float)
        axes.plot(x, y, color=look.color, linestyle=":", linewidth=0.8, zorder=2)
    draw_marks(axes, good, look)
    band = sound[sound["p20"].notna()]
    barred = band[band["disturbed"].fillna("") != ""] if "disturbed" in band else band[:0]
    axes.vlines(
        barred["length"].astype(float), barred["p20"].astype(float), barred["p80"].astype(float),
        color=look.color, linewidth=1.2, zorder=3,
    )  # fmt: skip
    if len(band) == 1:
        axes.vlines(band["length"], band["p20"], band["p80"], look.color, zorder=2)
    elif len(band):
        lengths, low, high = (band[c].astype(float) for c in ("length", "p20", "p80"))
        axes.fill_between(lengths, low, high, color=look.color, alpha=0.18, linewidth=0, zorder=2)
    return line


def rows_with_mark(data: pd.DataFrame, mark: str) -> pd.DataFrame:
    """Return the numbers that have a mark; data that were not timed have none."""
    if "mark" in data:
        return data[data["mark"] == mark]
    disturbed = "disturbed" in data and mark == UNCERTAIN
    return data[data["disturbed"].fillna("") != ""] if disturbed else data[:0]


def draw_marks(axes: Axes, good: pd.DataFrame, look: Look) -> None:
    """Put an open circle in the place of what is uncertain, a square around the other clock's."""
    for mark, shape, size in ((UNCERTAIN, "o", 7), (PROCESSOR, "D", 8.5)):
        here = rows_with_mark(good, mark)
        if here.empty:
            continue
        axes.plot(
            here["length"].astype(float), here["value"].astype(float), linestyle="none",
            marker=shape, markersize=size, markerfacecolor="none", markeredgecolor=look.color,
            markeredgewidth=1.0, label=legend_name(str(here["model"].iloc[0])), zorder=4,
        )  # fmt: skip


def _label(name: str, good: pd.DataFrame) -> str:
    """Return the name with the exponent, or that it is too uncertain."""
    if not len(good):
        return f"{name}  no value"
    first = good.iloc[0]
    if pd.isna(first["exponent_low"]):
        if len(rows_with_mark(good, UNCERTAIN)):
            return f"{name}  no exponent (too uncertain)"
        return f"{name}  {UNRESOLVED}" if len(good) > 1 else name
    interval = bounds(float(first["exponent_low"]), float(first["exponent_high"]))
    if pd.isna(first["exponent"]):
        lengths = len(good) - len(rows_with_mark(good, UNCERTAIN))
        why = f"({lengths} lengths)" if lengths < FEWEST else interval
        return f"{name}  {UNRESOLVED} {why}"
    return f"{name}  {round(float(first['exponent']), 2) + 0.0:.2f} {interval}"


def strip(count: int) -> tuple[float, float]:
    """Return the share of a plot's height that so many lines of crosses take, and that of one."""
    if not count:
        return 0.0, _STRIP
    share = min(0.5, 0.03 + _STRIP * count)
    return share, (share - 0.03) / count


def draw_crosses(
    axes: Axes, data: pd.DataFrame, looks: dict[str, Look], order: Sequence[str]
) -> None:
    """Put a cross for each absent number in a strip above the plot, one height per model.

    A name is written next to its crosses where there is room for it.
    """
    absent = data[data["value"].isna()]
    names = [n for n in order if n in set(absent["model"])]
    _, step = strip(len(names))
    figure = axes.figure
    assert isinstance(figure, Figure)
    room = step * axes.bbox.height / figure.dpi >= _NAME * 1.2 / 72
    for i, name in enumerate(names):
        lengths = absent[absent["model"] == name]["length"].astype(float)
        height = 0.975 - step * i
        axes.plot(
            lengths, [height] * len(lengths), transform=axes.get_xaxis_transform(),
            linestyle="none", marker="x", markersize=5.5, markeredgewidth=1.6,
            color=looks[name].color, zorder=4,
        )  # fmt: skip
        text = axes.annotate(
            drawable(name), (float(lengths.min()), height), xycoords=axes.get_xaxis_transform(),
            xytext=(-6, 0), textcoords="offset points", ha="right", va="center", size=_NAME,
            color=DARK,
        )  # fmt: skip
        if not room or step < _STRIP or text.get_window_extent().x0 < axes.bbox.x0 + 2:
            text.remove()


def set_axes(axes: Axes, data: pd.DataFrame, quantity: str, crosses: int | None = None) -> None:
    """Scale and label both axes; `crosses`: lines of them above the plot, None: as in data."""
    axes.set_yscale("log")
    length_axis(axes, sorted({int(n) for n in data["length"]}))
    bounds = data[["value", "p20", "p80"]].astype(float).to_numpy().ravel()
    bounds = bounds[np.isfinite(bounds) & (bounds > 0)]
    if bounds.size:
        low, high = float(bounds.min()) / 1.6, float(bounds.max()) * 1.6
        absent = data[data["value"].isna()]["model"].nunique()
        share, _ = strip(absent if crosses is None else crosses)
        # the strip of crosses takes its share of the height above the highest line
        axes.set_ylim(low, low * (high / low) ** (1 / (1 - share)))
    else:
        axes.set_ylim(0.1, 10)
    low, high = axes.get_ylim()
    narrow = high / low < 40  # too few powers of ten: name 2 and 5 as well
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if narrow else (1,)))
    axes.yaxis.set_minor_locator(LogLocator(base=10, subs=tuple(range(2, 10))))
    axes.yaxis.set_minor_formatter(NullFormatter())
    show = seconds if UNITS[quantity] == "s" else in_bytes
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: show(v)))
    if UNITS[quantity] == "B":
        axes.yaxis.set_major_locator(LogLocator(base=2 if narrow else 4))
        axes.yaxis.set_minor_locator(LogLocator(base=2))


def why_absent(data: pd.DataFrame, *, along: str = "length", exponent: bool = True) -> list[str]:
    """Say what crosses, circles and diamonds are, in two notes at most: the CSV has every reason.

    Args:
        data: what is drawn.
        along: what its `length` is.
        exponent: whether lines have exponents, in which no uncertain number is, on logarithmic
            axes, on which no zero is.
    """
    absent = data[data["value"].isna()]
    every = data["length"].nunique()

    def who(rows: pd.DataFrame) -> str:
        by_lengths: dict[str, list[str]] = {}
        for model, part in rows.groupby("model", sort=False):
            lengths = [f"{n:,}" for n in part["length"].unique()]
            words = f"every {along}" if len(lengths) == every > 1 else " and ".join(lengths)
            by_lengths.setdefault(words, []).append(str(model))
        return "; ".join(f"{_some(names)} at {words}" for words, names in by_lengths.items())

    notes = [
        f"× {MARKS.get(str(status), status)}, {reason}: {who(part)}"
        for (status, reason), part in absent.groupby(["status", "reason"], sort=False)
    ]
    marks = []
    if len(rows_with_mark(data, PROCESSOR)):
        marks.append(f"{DIAMOND} by the processors' clock, which excludes waiting")
    if len(rows_with_mark(data, UNCERTAIN)):
        marks.append(f"○ too uncertain{', excluded from exponents' if exponent else ''}")
    zeros = data[data["value"].astype(float) <= 0]
    if len(zeros) and exponent:
        marks.append(f"zero, which a logarithmic axis cannot show: {who(zeros)}")
    lines = sum(math.ceil(len(note) / _LINE) for note in notes) + bool(marks)
    if lines > _LINES:
        counts = absent.drop_duplicates(["model", "length", "status"])["status"].value_counts()
        words = ", ".join(f"{n} {MARKS.get(str(status), status)}" for status, n in counts.items())
        notes = [f"× no number: {words}; the CSV of this figure lists every reason"]
    return [*notes, *filter(None, ["; ".join(marks)])]


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")

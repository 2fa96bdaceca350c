"""Draw time and peak memory of one sequence against its length, on logarithmic axes."""

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
"""The most models that one note names."""
_LINES, _LINE = 2, 110
"""The most lines of all notes, and the letters of a line."""
_NAME = 6.5
"""Size in points of a name next to its crosses."""
_STRIP = 0.052
"""Height of a line of crosses, as a fraction of the plot's height."""
UNITS = {"time": "s", "memory": "B", "token_time": "s", "state_bytes": "B"}
"""Units of the quantities that are drawn against length."""


def scaling_data(points: Sequence[CostPoint], mode: str, quantity: str) -> pd.DataFrame:
    """Return the data of one figure: a record for each model and length, also for failures.

    Args:
        points: the points of one setting.
        mode: for example `forward` or `step`.
        quantity: `time` or `memory` of one sequence, which is that of a batch divided by its size.
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
    """Return a record for each point of a model's line, with the fitted exponent of the line.

    Args:
        model: the name of the model.
        mode: the mode of the points.
        quantity: a key of `UNITS`.
        positions: (length, batch size) of each point, by rising length.
        costs: the value of each point.
    """
    fit = _fit_line([length for length, _ in positions], costs)
    records = []
    for (length, batch_size), cost in zip(positions, costs, strict=True):
        record: dict[str, Any] = dict.fromkeys(COLUMNS)
        record |= {"model": model, "mode": mode, "quantity": quantity}
        record |= {"length": length, "value": cost.value, "unit": UNITS[quantity]}
        record |= {"batch_size": batch_size, "status": cost.status, "reason": cost.reason}
        record |= {"disturbed": cost.disturbed, "mark": cost.mark}
        records.append(record | _spread_and_exponent(cost, fit))
    return records


def _fit_line(lengths: Sequence[int], costs: Sequence[Value]) -> PowerLaw | None:
    """Return the fitted growth of a line; None if fewer than two of its numbers count."""
    # zeros have no logarithm; the state of a model may have 0 bytes
    points = [(n, c) for n, c in zip(lengths, costs, strict=True) if c.value and not c.uncertain]
    return fit_values(points) if len(points) > 1 else None


def _spread_and_exponent(cost: Value, fit: PowerLaw | None) -> dict[str, Any]:
    """Return the columns of percentiles of samples, and of the exponent, as far as known."""
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
    """Return what legends print after names; "" if the style omits exponents."""
    exponents = current_style().style.exponents
    return "after a name: fitted exponent of length [95 % interval]" if exponents else ""


def without_zeros(data: pd.DataFrame) -> pd.DataFrame:
    """Return data without zeros, which a logarithmic axis cannot show."""
    return data[~(data["value"].astype(float) <= 0)]


def by_last_value(data: pd.DataFrame, names: Sequence[str]) -> list[str]:
    """Return names in the order in which lines end: the most expensive at the longest length first.

    Models that the style in force puts in an order come before all others.
    """

    def sort_key(name: str) -> tuple[int, float, str]:
        """Return rank in the style, minus the (extended) value at the longest length, and name."""
        rank = current_style().rank(name)
        points = data[(data["model"] == name) & data["value"].notna()]
        if points.empty:
            return (rank, -np.inf, name)
        last = points.iloc[-1]
        exponent = last["exponent"] if pd.notna(last["exponent"]) else 1.0
        longest = float(data["length"].max())
        # a line that ends early is extended by its fitted growth
        extended = float(last["value"]) * (longest / float(last["length"])) ** float(exponent)
        return (rank, -extended, name)

    return sorted(names, key=sort_key)


def draw_line(
    axes: Axes, data: pd.DataFrame, look: Look, name: str, *, exponent: bool = True
) -> Line2D:
    """Draw the line of one model, with its name (and exponent) as label; return the line.

    A band or, for disturbed numbers, bars show the spread of samples. An uncertain number is an
    open circle on a thin dotted line, and a number by the processors' clock has a diamond.
    """
    measured = data[data["value"].notna()]
    certain = measured.drop(rows_with_mark(measured, UNCERTAIN).index)
    label = _label(name, measured) if exponent and current_style().style.exponents else name
    (line,) = axes.plot(
        certain["length"].astype(float), certain["value"].astype(float), color=look.color,
        marker=look.marker, markevery=max(1, len(certain) // 10), markeredgecolor=look.color,
        markerfacecolor="white" if look.marker in "sDv" else look.color, zorder=3,
        label=legend_name(label), linestyle=(0, look.dashes) if look.dashes else "-",
    )  # fmt: skip
    if len(certain) < len(measured):
        x, y = measured["length"].astype(float), measured["value"].astype(float)
        axes.plot(x, y, color=look.color, linestyle=":", linewidth=0.8, zorder=2)
    draw_marks(axes, measured, look)
    band = certain[certain["p20"].notna()]
    bars = band[band["disturbed"].fillna("") != ""] if "disturbed" in band else band[:0]
    axes.vlines(
        bars["length"].astype(float), bars["p20"].astype(float), bars["p80"].astype(float),
        color=look.color, linewidth=1.2, zorder=3,
    )  # fmt: skip
    if len(band) == 1:
        axes.vlines(band["length"], band["p20"], band["p80"], look.color, zorder=2)
    elif len(band):
        lengths, low, high = (band[c].astype(float) for c in ("length", "p20", "p80"))
        axes.fill_between(lengths, low, high, color=look.color, alpha=0.18, linewidth=0, zorder=2)
    return line


def rows_with_mark(data: pd.DataFrame, mark: str) -> pd.DataFrame:
    """Return the rows with a mark, PROCESSOR or UNCERTAIN; data without times have none."""
    if "mark" in data:
        return data[data["mark"] == mark]
    disturbed = "disturbed" in data and mark == UNCERTAIN
    return data[data["disturbed"].fillna("") != ""] if disturbed else data[:0]


def draw_marks(axes: Axes, good: pd.DataFrame, look: Look) -> None:
    """Draw an open circle for each uncertain number, and a diamond for the processors' clock."""
    for mark, shape, size in ((UNCERTAIN, "o", 7), (PROCESSOR, "D", 8.5)):
        marked = rows_with_mark(good, mark)
        if marked.empty:
            continue
        axes.plot(
            marked["length"].astype(float), marked["value"].astype(float), linestyle="none",
            marker=shape, markersize=size, markerfacecolor="none", markeredgecolor=look.color,
            markeredgewidth=1.0, label=legend_name(str(marked["model"].iloc[0])), zorder=4,
        )  # fmt: skip


def _label(name: str, measured: pd.DataFrame) -> str:
    """Return the name of a model with its exponent and interval, or why there is no exponent."""
    if not len(measured):
        return f"{name}  no value"
    first = measured.iloc[0]
    if pd.isna(first["exponent_low"]):
        if len(rows_with_mark(measured, UNCERTAIN)):
            return f"{name}  no exponent (too uncertain)"
        return f"{name}  {UNRESOLVED}" if len(measured) > 1 else name
    interval = bounds(float(first["exponent_low"]), float(first["exponent_high"]))
    if pd.isna(first["exponent"]):
        lengths = len(measured) - len(rows_with_mark(measured, UNCERTAIN))
        why = f"({lengths} lengths)" if lengths < FEWEST else interval
        return f"{name}  {UNRESOLVED} {why}"
    # Adding 0.0 makes 0.00 of -0.00.
    return f"{name}  {round(float(first['exponent']), 2) + 0.0:.2f} {interval}"


def strip(count: int) -> tuple[float, float]:
    """Return the heights of `count` lines of crosses and of one, as fractions of the plot's.

    The lines and their margin, 0.03, take at most half of the plot.
    """
    if not count:
        return 0.0, _STRIP
    share = min(0.5, 0.03 + _STRIP * count)
    return share, (share - 0.03) / count


def draw_crosses(
    axes: Axes, data: pd.DataFrame, looks: dict[str, Look], order: Sequence[str]
) -> None:
    """Draw a cross for each missing number in a strip at the top, with a line for each model.

    The name of the model is next to its crosses if there is room for it.
    """
    absent = data[data["value"].isna()]
    names = [n for n in order if n in set(absent["model"])]
    _, step = strip(len(names))
    figure = axes.figure
    assert isinstance(figure, Figure)
    high_enough = step * axes.bbox.height / figure.dpi >= _NAME * 1.2 / 72
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
        if not high_enough or step < _STRIP or text.get_window_extent().x0 < axes.bbox.x0 + 2:
            text.remove()


def set_axes(axes: Axes, data: pd.DataFrame, quantity: str, crosses: int | None = None) -> None:
    """Scale and label both axes, with room for `crosses` lines of crosses (None: of the data)."""
    axes.set_yscale("log")
    length_axis(axes, sorted({int(n) for n in data["length"]}))
    bounds = data[["value", "p20", "p80"]].astype(float).to_numpy().ravel()
    bounds = bounds[np.isfinite(bounds) & (bounds > 0)]
    if bounds.size:
        low, high = float(bounds.min()) / 1.6, float(bounds.max()) * 1.6
        absent = data[data["value"].isna()]["model"].nunique()
        share, _ = strip(absent if crosses is None else crosses)
        # the strip of crosses is above the highest line
        axes.set_ylim(low, low * (high / low) ** (1 / (1 - share)))
    else:
        axes.set_ylim(0.1, 10)
    low, high = axes.get_ylim()
    narrow = high / low < 40  # with few powers of ten, 2 and 5 are labelled as well
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if narrow else (1,)))
    axes.yaxis.set_minor_locator(LogLocator(base=10, subs=tuple(range(2, 10))))
    axes.yaxis.set_minor_formatter(NullFormatter())
    show = seconds if UNITS[quantity] == "s" else in_bytes
    axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: show(v)))
    if UNITS[quantity] == "B":
        axes.yaxis.set_major_locator(LogLocator(base=2 if narrow else 4))
        axes.yaxis.set_minor_locator(LogLocator(base=2))


def why_absent(data: pd.DataFrame, *, along: str = "length", exponent: bool = True) -> list[str]:
    """Return at most a few notes that explain crosses, circles and diamonds of a figure.

    Args:
        data: the data of the figure.
        along: the words for its column `length`.
        exponent: whether lines have exponents and logarithmic axes, which exclude uncertain
            numbers and zeros.
    """
    absent = data[data["value"].isna()]
    length_count = data["length"].nunique()

    def models_at_lengths(rows: pd.DataFrame) -> str:
        """Return the models in `rows` and their lengths; models with equal lengths are together."""
        by_lengths: dict[str, list[str]] = {}
        for model, part in rows.groupby("model", sort=False):
            lengths = [f"{n:,}" for n in part["length"].unique()]
            at_all = len(lengths) == length_count > 1
            words = f"every {along}" if at_all else " and ".join(lengths)
            by_lengths.setdefault(words, []).append(str(model))
        return "; ".join(f"{_first_names(names)} at {words}" for words, names in by_lengths.items())

    notes = [
        f"× {MARKS.get(str(status), status)}, {reason}: {models_at_lengths(part)}"
        for (status, reason), part in absent.groupby(["status", "reason"], sort=False)
    ]
    marks = []
    if len(rows_with_mark(data, PROCESSOR)):
        marks.append(f"{DIAMOND} time by the processors' clock, which excludes waiting")
    if len(rows_with_mark(data, UNCERTAIN)):
        marks.append(f"○ too uncertain{', excluded from exponents' if exponent else ''}")
    zeros = data[data["value"].astype(float) <= 0]
    if len(zeros) and exponent:
        zero_models = models_at_lengths(zeros)
        marks.append(f"the value is 0, which a logarithmic axis cannot show: {zero_models}")
    lines = sum(math.ceil(len(note) / _LINE) for note in notes) + bool(marks)
    if lines > _LINES:
        counts = absent.drop_duplicates(["model", "length", "status"])["status"].value_counts()
        words = ", ".join(f"{n} {MARKS.get(str(status), status)}" for status, n in counts.items())
        notes = [f"× no number was measured: {words}; the CSV of this figure has each reason"]
    return [*notes, *filter(None, ["; ".join(marks)])]


def _first_names(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")

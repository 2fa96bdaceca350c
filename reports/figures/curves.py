"""Losses as lines: against the optimiser step, and by classes of tokens.

Small multiples, one panel per task; lines are means over seeds, bands their extremes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator, SymmetricalLogLocator

from lra.reports.figures.captions import panel_titles
from lra.reports.figures.drawing import Look, legend_name, style
from lra.reports.figures.layout import arrange, chunks, sheet
from lra.reports.labels import first_position
from lra.reports.rows import as_text, model_order

TRAINING = ("task", "task_version", "source")
EVALUATION = (*TRAINING, "length", "regime", "tokenizer")
"""Columns whose values share a panel."""
LINES, PANELS = 12, 12
"""Of one figure."""
_PLOT = (2.95, 1.95)
"""Inches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What a line is drawn against."""

    column: str
    x: str
    y: str
    title: str
    base: int | None = None
    """Each position is so many times the one before it; None: positions are steps."""


STEP = Axis(column="step", x="optimiser step", y="training loss (nat)", title="Training loss")
POSITION = Axis(
    column="place",
    x="tokens read in the window, from",
    y="loss (nat)",
    title="Loss by position in the window",
    base=2,
)
DOCUMENT = Axis(
    column="place",
    x="tokens read in the document, from",
    y="loss (nat)",
    title="Loss by position in the document",
    base=2,
)
FREQUENCY = Axis(
    column="place",
    x="occurrences in train, from",
    y="loss (nat)",
    title="Loss by token frequency",
    base=10,
)
CLASSES = {"position": POSITION, "document_position": DOCUMENT, "frequency": FREQUENCY}
"""By what losses are summed, `loss_by_…`, and what each is drawn against."""


def loss_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the training losses by step: task, model, step, mean, extremes, number of seeds."""
    curve = rows[(rows["metric"] == "train_loss") & rows["step"].notna() & (rows["status"] == "ok")]
    return _means(curve, TRAINING, "step")


def class_data(rows: pd.DataFrame, split: str, kind: str) -> pd.DataFrame:
    """Return the losses of a split by classes, one of `CLASSES`; a part reaches to the next one."""
    parts = rows[
        (rows["metric"] == f"loss_by_{kind}") & (rows["split"] == split) & (rows["status"] == "ok")
    ]
    parts = parts[parts["baseline"] == ""]
    first = [first_position({"labels": labels}) for labels in parts["labels"]]
    texts = [as_text(value) for value in parts["length"]]
    return _means(parts.assign(place=first, length=texts), EVALUATION, "place")


def _means(rows: pd.DataFrame, panel: tuple[str, ...], column: str) -> pd.DataFrame:
    keys = [*panel, "name", column]
    groups: dict[tuple[Any, ...], list[tuple[float, Any]]] = {}
    complete = rows.dropna(subset=keys)
    measured = complete[[*keys, "value", "seed"]].itertuples(index=False, name=None)
    for *key, value, seed in measured:  # ten times as fast as a frame for each group
        groups.setdefault(tuple(key), []).append((value, seed))
    records = []
    for group, pairs in sorted(groups.items()):
        values = np.array([value for value, _ in pairs])
        seeds = len({seed for _, seed in pairs if not pd.isna(seed)})
        records.append((*group, values.mean(), values.min(), values.max(), seeds))
    columns = [*panel, "model", column, "loss", "low", "high", "seeds"]
    data = pd.DataFrame(records, columns=columns)
    return data.astype({column: int}) if len(data) else data


def pages(
    data: pd.DataFrame, panel: Sequence[str], panels: int = PANELS, lines: int | None = LINES
) -> list[pd.DataFrame]:
    """Return the data in parts that one figure each can hold: of few panels and few lines.

    Args:
        data: with a column `model`.
        panel: columns whose values share a panel.
        panels: of one page.
        lines: models of one page; None: any number.
    """
    columns = [column for column in panel if column in data.columns]
    tuples = list(zip(*(data[c] for c in columns), strict=True)) if columns else [()] * len(data)
    keys = pd.Series(tuples, index=data.index, dtype=object)
    groups = chunks(list(dict.fromkeys(keys)), panels)
    if lines is None:
        return [data[keys.isin(p)] for p in groups]
    models = chunks(model_order([str(name) for name in data["model"]]), lines)
    parts = (data[keys.isin(p) & data["model"].isin(m)] for p in groups for m in models)
    return [part for part in parts if len(part)]


def page_names(stem: str, heading: str, count: int) -> list[tuple[str, str]]:
    """Return stem and heading of each page of a figure; one page alone needs no number."""
    if count == 1:
        return [(stem, heading)]
    return [
        (stem if n == 1 else f"{stem}-{n}", f"{heading} ({n} of {count})")
        for n in range(1, count + 1)
    ]


def curve_figure(data: pd.DataFrame, looks: dict[str, Look], axis: Axis) -> Figure:
    """Draw what `loss_data` or `class_data` returned."""
    panel = [column for column in EVALUATION if column in data.columns]
    keys = list(dict.fromkeys(data[panel].itertuples(index=False, name=None)))
    with style():
        grid = sheet(len(keys), plot=_PLOT)
        drawn: dict[str, Line2D] = {}
        titles, facts = panel_titles([_title(key) for key in keys])
        for axes, key, title in zip(grid.axes, keys, titles, strict=True):
            part = data[(data[panel] == list(key)).all(axis=1)]
            for name, line in _draw_curves(axes, part, looks, axis.column).items():
                drawn.setdefault(name, line)
            axes.set_title(title, size=8.5)
            axes.set_xlabel(axis.x)
            axes.set_ylabel(axis.y)
            _ticks(axes, axis)
        several = bool((data["seeds"] > 1).any())
        return arrange(
            grid,
            title=axis.title,
            subtitle="means over seeds; bands: extremes over seeds" if several else "",
            handles=[drawn[name] for name in model_order(list(drawn))],
            notes=[facts] if facts else [],
        )


def _title(key: tuple[Any, ...]) -> tuple[str, str]:
    """Return the task of a panel, and facts about it."""
    task, version, source, *further = key
    facts = [str(source), f"version {as_text(version)}"]
    if further:
        length, *marks = further
        facts += [f"length {length}", *(str(mark) for mark in marks if mark)]
    return str(task), ", ".join(facts)


def _ticks(axes: Axes, axis: Axis) -> None:
    if axis.base is not None:
        # 0 is a separate class below 1
        axes.set_xscale("symlog", base=axis.base, linthresh=1, linscale=1 - 1 / axis.base)
        axes.xaxis.set_major_locator(SymmetricalLogLocator(base=axis.base, linthresh=1))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))


def _draw_curves(
    axes: Axes, data: pd.DataFrame, looks: dict[str, Look], column: str
) -> dict[str, Line2D]:
    drawn = {}
    for name in model_order([str(n) for n in data["model"]]):
        line = data[data["model"] == name]
        look = looks[name]
        x = line[column].astype(float)
        (drawn[name],) = axes.plot(
            x,
            line["loss"],
            color=look.color,
            linestyle=(0, look.dashes) if look.dashes else "-",
            marker=look.marker,
            markersize=3.5,
            markevery=max(1, len(line) // 6),
            markerfacecolor="white" if look.marker in "sDv" else look.color,
            linewidth=1.2,
            label=legend_name(name),
        )
        if (line["seeds"] > 1).any():
            axes.fill_between(
                x, line["low"], line["high"], color=look.color, alpha=0.12, linewidth=0
            )
    return drawn

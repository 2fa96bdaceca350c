"""Scores against the width of a head's queries and keys, by the number of heads.

Heads of a fixed share of the model's width get narrower with their number: beyond a point a matrix
of attention weights can no longer be any other one (the low-rank bottleneck of arXiv:2002.07028).
A line is a number of heads; dashes join places of equal parameters, heads times width.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.curves import EVALUATION
from lra.reports.figures.drawing import PALETTE, style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.sections.section import PagesPart, Part, TablePart, alike
from lra.reports.style import chosen
from lra.reports.tables.places import by_place, extremes, place_title, summaries
from lra.reports.tables.scores import SCORES, Score, entry, final_scores
from lra.reports.tables.table import Column, Table, TableRow

WIDTH, HEADS = "backbone.head_width", "backbone.heads"
COLUMNS = (*EVALUATION, "metric", "model", "heads", "key_width", "value", "low", "high", "seeds")
_PLOT = (3.0, 2.2)
"""Inches."""


def key_width_rows(rows: pd.DataFrame, score: Score) -> pd.DataFrame:
    """Return final test scores of models that differ in the width of a head, with both numbers.

    Args:
        rows: as `lra.reports.rows.prepare` returns them.
        score: which.
    """
    scores = final_scores(rows, "test", score)
    if scores is None:
        return rows.iloc[:0]
    numbers = [
        [_as_int(options.get(key)) for key in (HEADS, WIDTH)] for options in scores["options"]
    ]
    scores[["heads", "key_width"]] = pd.DataFrame(numbers, index=scores.index, dtype="Int64")
    scores["line"] = [_model_line(row) for row in scores.to_dict("records")]
    scores = scores[scores["key_width"].notna()]
    widths = scores.groupby(list(EVALUATION), dropna=False)["key_width"].transform("nunique")
    return scores[widths > 1]


def _as_int(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _model_line(row: dict[Any, Any]) -> str:
    """Return the model's name without the width of its heads."""
    options = {key: value for key, value in row["options"].items() if key != WIDTH}
    return chosen().name(row["family"], options, row["departures"])


def key_width_data(rows: pd.DataFrame, score: Score) -> pd.DataFrame:
    """Return the mean and the extremes over seeds of each place.

    Args:
        rows: as `key_width_rows` returns them.
        score: of which they are.
    """
    good = rows[rows["status"] == "ok"]
    good = good.assign(name=good["line"], value=good["value"].astype(float) * score.factor)
    records = summaries(good, (*EVALUATION, "name", "heads", "key_width"), extremes)
    data = pd.DataFrame(records, columns=list(COLUMNS)).assign(metric=score.metric)
    return data.sort_values([*EVALUATION, "heads", "model", "key_width"], ignore_index=True)


def key_width_figure(data: pd.DataFrame, score: Score) -> Figure:
    """Draw what `key_width_data` returned: a panel for each task, a line for each other option."""
    panels = by_place(data)
    names = list(dict.fromkeys(data["model"]))
    colors = {name: PALETTE[number % len(PALETTE)] for number, name in enumerate(names)}
    equal = False
    with style():
        grid = sheet(len(panels), plot=_PLOT)
        for axes, (panel, points) in zip(grid.axes, panels, strict=True):
            for name, part in points.groupby("model", sort=False):
                _draw_widths(axes, part, colors[str(name)])
            equal |= _join_equal(axes, points)
            widths = sorted({int(width) for width in points["key_width"]})
            axes.set_xscale("log", base=2)
            axes.set_xticks(widths, [str(width) for width in widths])
            axes.minorticks_off()
            axes.set_xlabel("width of a head's queries and keys")
            axes.set_ylabel(f"{score.title.lower()}{' (%)' if score.shares else ''}")
            axes.set_title(f"{place_title(panel)} ({panel[2]})", size=8.5)
        handles = [
            Line2D([], [], color=colors[name], marker="o", markersize=3.5, label=name)
            for name in names
        ]
        if equal:
            label = "equal heads × width"
            handles.append(Line2D([], [], color="0.55", linestyle=(0, (4, 2)), label=label))
        return arrange(
            grid,
            title=f"{score.title} against key width",
            subtitle="test split; bands: extremes over seeds",
            handles=handles,
        )


def _draw_widths(axes: Axes, line: pd.DataFrame, color: str) -> None:
    widths = line["key_width"].astype(float)
    axes.plot(widths, line["value"], color=color, marker="o", markersize=3.5, linewidth=1.3)
    if (line["seeds"] > 1).any():
        axes.fill_between(widths, line["low"], line["high"], color=color, alpha=0.12, linewidth=0)


def _join_equal(axes: Axes, points: pd.DataFrame) -> bool:
    """Join places of equal parameters where there are three or more; return whether there are."""
    products = points["heads"] * points["key_width"]
    drawn = False
    for _, part in points[products.notna()].groupby(products[products.notna()]):
        if part["heads"].nunique() > 2 and part["heads"].is_unique:
            axes.plot(
                part["key_width"].astype(float), part["value"], color="0.55",
                linestyle=(0, (4, 2)), linewidth=1.0, zorder=1,
            )  # fmt: skip
            drawn = True
    return drawn


def key_width_table(rows: pd.DataFrame, score: Score) -> Table:
    """Build the table: lines of the figure by width, tasks side by side; failures are marks."""
    places = [
        (task, width, part[part["key_width"] == width])
        for task, part in by_place(rows)
        for width in sorted(set(part["key_width"]))
    ]
    lines = rows.sort_values(["heads", "line"])["line"]
    return Table(
        title=f"{score.title} by key width",
        caption=f"{score.unit}, test split, mean over seeds; columns: width of a head's queries "
        "and keys.",
        stub="model",
        columns=tuple(
            Column(group=place_title(task), title=str(width), key=f"{task[0]} {width}")
            for task, width, _ in places
        ),
        rows=tuple(
            TableRow(title=str(name), entries=tuple(
                entry(part[part["line"] == name], score) for _, _, part in places
            ))
            for name in dict.fromkeys(lines)
        ),
    )  # fmt: skip


def key_widths(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figure of each score that trainings of several widths of heads have."""
    trained = rows[rows["runner"] == "train"]
    for score in SCORES.values():
        scored = key_width_rows(trained, score)
        if scored.empty:
            continue
        name = f"key-width-{score.metric.replace('_', '-')}"
        table = key_width_table(scored, score)
        yield TablePart(f"{name}-table", f"{score.title} by key width", table)
        yield PagesPart(
            name, f"{score.title} against key width",
            f"{score.title.lower()} on the test split against the width of a head's keys",
            alike(partial(key_width_figure, score=score)), panel=EVALUATION,
            data=key_width_data(scored, score),
        )  # fmt: skip

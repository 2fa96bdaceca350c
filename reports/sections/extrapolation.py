"""Scores at lengths that no model was trained for: one panel per task, and a table."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.drawing import Look, style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.figures.scaling import draw_crosses, draw_line, strip, why_absent
from lra.reports.figures.ticks import length_axis
from lra.reports.rows import model_order
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.tables.places import by_place, extremes, place_facts, summary
from lra.reports.tables.scores import SCORES, TASK, Score, entry
from lra.reports.tables.table import Column, Entry, Table, TableRow
from lra.runners.metrics import JUDGED_BY, METRICS

COLUMNS = (
    *TASK, "metric", "model", "trained_tokens", "factor", "tokens", "value", "low", "high", "seeds",
    "status", "reason",
)  # fmt: skip
_PLOT = (3.0, 2.2)
"""Inches."""


def extrapolation_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of trained models at other lengths; of each task the first score alone.

    A cell that failed as a whole has one row, which holds for every length of its task.
    """
    measured = rows[(rows["runner"] == "extrapolate") & (rows["split"] == "test")].copy()
    for label in ("factor", "tokens", "trained_tokens"):
        measured[label] = [float(labels.get(label, "nan")) for labels in measured["labels"]]
    chosen = {}
    for task, part in measured.groupby("task"):
        metrics = set(part["metric"])
        chosen[task] = next((name for name in JUDGED_BY if name in metrics), "")
    is_score = measured["metric"] == measured["task"].map(chosen)
    return measured[is_score | (measured["factor"].isna() & (measured["status"] != "ok"))]


def extrapolation_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per task, model and length: mean over seeds and extremes, or why not.

    Args:
        rows: as `extrapolation_rows` returns them.
    """
    records: list[dict[str, Any]] = []
    for key, part in rows.groupby(list(TASK), sort=True, dropna=False):
        points = part[part["factor"].notna()]
        if points.empty:
            continue
        metric = str(points["metric"].iloc[0])
        axis: dict[float, tuple[int, int]] = {}
        for row in points.sort_values("status").to_dict("records"):  # ok comes before the failures
            axis.setdefault(row["factor"], (int(row["tokens"]), int(row["trained_tokens"])))
        for name in model_order([str(n) for n in part["name"]]):
            of_model = part[part["name"] == name]
            for factor, (tokens, trained) in sorted(axis.items()):
                at = of_model[of_model["factor"].isin((factor, np.nan))]
                record = dict(zip(TASK, key, strict=True)) | summary(at, extremes)
                record |= {"metric": metric, "model": name, "factor": factor}
                records.append(record | {"tokens": tokens, "trained_tokens": trained})
    return pd.DataFrame(records, columns=list(COLUMNS))


def extrapolation_figure(data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
    """Draw what `extrapolation_data` returned: one panel per task, the training length marked.

    A length without a number is a cross above the lines, and a note below says why.
    """
    places = by_place(data)
    with style():
        grid = sheet(len(places), plot=_PLOT)
        handles: dict[str, Line2D] = {}
        for axes, (place, part) in zip(grid.axes, places, strict=True):
            for name, line in _draw_scores(axes, part, looks).items():
                handles.setdefault(name, line)
            axes.set_title(place_facts(place, length=False), size=8.5)
        lengths = sorted({int(n) for n in data["trained_tokens"]})
        trained = " or ".join(f"{n:,}" for n in lengths)
        return arrange(
            grid,
            title="Beyond the training length",
            subtitle=f"dashed: the training length, {trained} tokens; bands: extremes over seeds",
            handles=[handles[name] for name in model_order(list(handles))],
            notes=_notes(data),
        )


def _draw_scores(axes: Axes, data: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    score = SCORES[data["metric"].iloc[0]]
    drawn = data.assign(
        length=data["tokens"],
        value=data["value"].astype(float) * score.factor,
        p20=(data["low"].astype(float) * score.factor).where(data["seeds"] > 1),
        p80=(data["high"].astype(float) * score.factor).where(data["seeds"] > 1),
    )
    handles = draw_lines(axes, drawn, looks)
    for trained in set(drawn["trained_tokens"]):
        axes.axvline(float(trained), color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    axes.set_xlabel("evaluation length (tokens)")
    axes.set_ylabel(
        f"{score.title.lower()} ({'%' if score.shares else METRICS[score.metric].unit})"
    )
    return handles


def draw_lines(axes: Axes, drawn: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    """Draw values against length with their bands, and crosses above for what has none.

    Args:
        axes: Where.
        drawn: Columns `model`, `length`, `value`, `p20` and `p80` (the band), `status`, `reason`.
        looks: Of every model.
    """
    names = list(dict.fromkeys(drawn["model"]))
    handles = {
        n: draw_line(axes, drawn[drawn["model"] == n], looks[n], n, exponent=False) for n in names
    }
    length_axis(axes, sorted({int(n) for n in drawn["length"]}))
    absent = drawn[drawn["value"].isna()]["model"].nunique()
    values = drawn[["value", "p20", "p80"]].to_numpy(float)
    values = values[np.isfinite(values)]
    if values.size:
        low, high = float(values.min()), float(values.max())
        room = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
        # the strip of crosses takes its share of the height above the highest line
        share, _ = strip(absent)
        axes.set_ylim(low - room, low - room + (high - low + 2 * room) / (1 - share))
    draw_crosses(axes, drawn, looks, names)
    return handles


def _notes(data: pd.DataFrame) -> list[str]:
    several = data["task"].nunique() > 1
    named = data.assign(length=data["tokens"])
    if several:
        named["model"] = named["model"] + ", " + named["task"]
    by_task = [why_absent(part) for _, part in named.groupby("task", sort=False)]
    return [note for notes in by_task for note in notes]


def extrapolation_tables(rows: pd.DataFrame) -> list[tuple[str, Table]]:
    """Return the metric and the table of each score: models by length, tasks side by side.

    Args:
        rows: as `extrapolation_rows` returns them.
    """
    data = extrapolation_data(rows)
    tables = []
    for score in SCORES.values():
        scored = data[data["metric"] == score.metric]
        if scored.empty:
            continue
        names = model_order([str(n) for n in scored["model"]])
        points = scored[[*TASK, "factor", "tokens"]].drop_duplicates()
        columns, by_column = [], []
        for point in points.itertuples(index=False, name=None):
            *task, factor, tokens = point
            columns.append(
                Column(group=str(task[0]), title=f"{tokens:,}", key=f"{task[0]}-{factor:g}x")
            )
            at = (rows[list(TASK)] == task).all(axis=1)
            by_column.append(rows[at & rows["factor"].isin((factor, np.nan))])
        table_rows = tuple(
            TableRow(
                title=name,
                entries=tuple(_short(at[at["name"] == name], score) for at in by_column),
            )
            for name in names
        )
        trained = sorted(set(scored["trained_tokens"]))
        caption = (
            f"{score.unit}, mean over seeds, by tokens of a test example; every model was trained "
            f"at {' or '.join(f'{n:,}' for n in trained)} tokens. Intervals are in the CSV."
        )
        tables.append(
            (
                score.metric,
                Table(
                    title=f"{score.title} beyond the training length",
                    caption=caption,
                    stub="model, by length",
                    columns=tuple(columns),
                    rows=table_rows,
                ),
            )
        )
    return tables


def _short(rows: pd.DataFrame, score: Score) -> Entry:
    """Return the table's entry without its interval, which would not fit."""
    full = entry(rows, score)
    if full.value is None:
        return full
    return replace(full, text=f"{score.factor * full.value:.{score.digits}f}")


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table of each score, and the figure of all."""
    measured = extrapolation_rows(rows)
    heading = "Beyond the training length"
    for metric, table in extrapolation_tables(measured):
        name = f"extrapolation-{metric.replace('_', '-')}"
        yield TablePart(name, f"{heading}, {metric.replace('_', ' ')}", table)
    yield PagesPart(
        "extrapolation", heading, "scores on the test split against evaluation length",
        extrapolation_figure, panel=TASK, along="tokens", data=extrapolation_data(measured),
    )  # fmt: skip

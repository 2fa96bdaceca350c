"""Scores at lengths that no model was trained for: one panel per task, and a table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from reports.accuracy import ACCURACY, LANGUAGE, Score, entry
from reports.curves import TITLE_WIDTH
from reports.drawing import Look, new_figure, save, style
from reports.rows import model_order, short, shown
from reports.scaling_figures import draw_crosses, draw_line, length_axis, why_absent
from reports.tables import Column, Entry, Row, Table

TASK = ("task", "task_version", "source", "length", "regime", "tokenizer")
"""Columns whose values share a panel; the length is the training's."""
SCORES = (*LANGUAGE, ACCURACY)
COLUMNS = (
    *TASK, "metric", "model", "trained_tokens", "factor", "tokens", "value", "low", "high", "seeds",
    "status", "reason",
)  # fmt: skip
_ACROSS = 2
_WIDE, _TALL, _NOTE = 3.9, 3.1, 0.155
"""Inches: a panel's width and height, and a line of notes."""
_LETTERS = 19
"""Of notes, to an inch."""


def extrapolation_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of trained models at other lengths, each task's by its first score alone.

    A cell that failed as a whole has one row, which holds for every length of its task.
    """
    own = rows[(rows["runner"] == "extrapolate") & (rows["split"] == "test")].copy()
    for label in ("factor", "tokens", "trained_tokens"):
        own[label] = [found.get(label, "") for found in own["labels"]]
    chosen = {}
    for task, part in own.groupby("task"):
        known = set(part["metric"])
        chosen[task] = next((score.metric for score in SCORES if score.metric in known), "")
    told = own["metric"] == own["task"].map(chosen)
    return own[told | ((own["factor"] == "") & (own["status"] != "ok"))]


def extrapolation_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one line per task, model and length: mean over seeds and extremes, or why not.

    Args:
        rows: as `extrapolation_rows` returns them.
    """
    records: list[dict[str, Any]] = []
    for key, part in rows.groupby(list(TASK), sort=True, dropna=False):
        places = part[part["factor"] != ""]
        if places.empty:
            continue
        metric = str(places["metric"].iloc[0])
        axis: dict[float, tuple[int, int]] = {}
        for row in places.sort_values("status").to_dict("records"):  # ok comes before the failures
            axis.setdefault(float(row["factor"]), (int(row["tokens"]), int(row["trained_tokens"])))
        for name in model_order([str(n) for n in part["name"]]):
            own = part[part["name"] == name]
            for factor, (tokens, trained) in sorted(axis.items()):
                at = own[own["factor"].isin({f"{factor:g}", ""})]
                record = dict(zip(TASK, key, strict=True)) | _point(at)
                record |= {"metric": metric, "model": name, "factor": factor}
                records.append(record | {"tokens": tokens, "trained_tokens": trained})
    return pd.DataFrame(records, columns=list(COLUMNS))


def _point(rows: pd.DataFrame) -> dict[str, Any]:
    good = rows[rows["status"] == "ok"]
    if good.empty:
        bad = rows.iloc[0] if len(rows) else {"status": "skipped", "reason": "not run"}
        return {"status": str(bad["status"]), "reason": short(str(bad["reason"])), "seeds": 0}
    values = good["value"].astype(float)
    return {
        "value": values.mean(),
        "low": values.min(),
        "high": values.max(),
        "seeds": good["seed"].nunique(),
        "status": "ok",
        "reason": "",
    }


def extrapolation_figure(data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
    """Draw what `extrapolation_data` returned: one panel per task, the training length marked.

    A length without a number is a cross above the lines, and a note below says why.
    """
    keys = list(dict.fromkeys(data[list(TASK)].itertuples(index=False, name=None)))
    across = min(_ACROSS, len(keys))
    down = -(-len(keys) // across)
    with style():
        plots, tall = _WIDE * across, _TALL * down
        figure = new_figure(width=plots, height=tall)
        panels = figure.subplots(down, across, squeeze=False)
        handles: dict[str, Line2D] = {}
        for axes, key in zip(panels.ravel(), keys, strict=False):
            own = data[(data[list(TASK)] == list(key)).all(axis=1)]
            handles |= _draw(axes, own, looks)
            task, version, source, _, *marks = key
            said = ", ".join([str(source), f"version {shown(version)}", *filter(None, marks)])
            title = fill(f"{task} ({said})", TITLE_WIDTH, break_on_hyphens=False)
            axes.set_title(title, pad=14)
        for axes in panels.ravel()[len(keys) :]:
            axes.set_axis_off()
        order = [handles[name] for name in model_order(list(handles))]
        legend = figure.legend(handles=order, loc="upper left", borderaxespad=0)
        # the figure grows with its legend and its notes, so that every plot has one size
        size = legend.get_window_extent()
        width = plots + size.width / figure.dpi + 0.15
        notes = _notes(data)
        fitting = int(width * _LETTERS)
        lines = [w for note in notes for w in wrap(note, fitting, subsequent_indent="    ")]
        foot = _NOTE * len(lines) + 0.1 if lines else 0.0
        height = max(tall, size.height / figure.dpi + 0.6) + foot
        figure.set_size_inches(width, height)
        figure.set_layout_engine(
            "constrained", rect=(0, foot / height, plots / width, 1 - foot / height)
        )
        legend.set_bbox_to_anchor((plots / width, 1 - 0.5 / height))
        legend.set_in_layout(False)
        for i, line in enumerate(lines):
            y = (foot - _NOTE * (i + 0.5)) / height
            figure.text(0.08 / width, y, line, va="center", size=7, color="0.25")
    return figure


def _draw(axes: Axes, own: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    score = next(score for score in SCORES if score.metric == own["metric"].iloc[0])
    drawn = own.assign(
        length=own["tokens"],
        value=own["value"].astype(float) * score.factor,
        p20=(own["low"].astype(float) * score.factor).where(own["seeds"] > 1),
        p80=(own["high"].astype(float) * score.factor).where(own["seeds"] > 1),
    )
    names = list(dict.fromkeys(drawn["model"]))
    handles = {n: draw_line(axes, drawn[drawn["model"] == n], looks[n], label=n) for n in names}
    length_axis(axes, sorted({int(n) for n in drawn["length"]}))
    absent = drawn[drawn["value"].isna()]["model"].nunique()
    values = drawn[["value", "p20", "p80"]].to_numpy(float)
    values = values[np.isfinite(values)]
    if values.size:
        low, high = float(values.min()), float(values.max())
        room = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
        # the strip of crosses takes its share of the height above the highest line
        share = min(0.5, 0.03 + 0.052 * absent) if absent else 0.0
        axes.set_ylim(low - room, low - room + (high - low + 2 * room) / (1 - share))
    draw_crosses(axes, drawn, looks, names, named=False)
    for trained in set(drawn["trained_tokens"]):
        axes.axvline(float(trained), color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        axes.annotate(
            f"trained at {trained:,}",
            (float(trained), 1.02),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            size=7,
            color="0.35",
        ).set_in_layout(False)
    axes.set_xlabel("evaluation length (tokens)")
    axes.set_ylabel(f"{score.title.lower()} ({'%' if score.shares else _unit(score)})")
    return handles


def _unit(score: Score) -> str:
    return {"bits_per_character": "bit"}.get(score.metric, "1")


def _notes(data: pd.DataFrame) -> list[str]:
    several = data["task"].nunique() > 1
    told = data.assign(length=data["tokens"])
    if several:
        told["model"] = told["model"] + ", " + told["task"]
    found = [why_absent(part) for _, part in told.groupby("task", sort=False)]
    return [note for notes in found for note in notes]


def extrapolation_tables(rows: pd.DataFrame) -> list[tuple[str, Table]]:
    """Return the metric and the table of each score: models by length, tasks side by side.

    Args:
        rows: as `extrapolation_rows` returns them.
    """
    data = extrapolation_data(rows)
    found = []
    for score in SCORES:
        own = data[data["metric"] == score.metric]
        if own.empty:
            continue
        names = model_order([str(n) for n in own["model"]])
        places = own[[*TASK, "factor", "tokens"]].drop_duplicates()
        columns, by_column = [], []
        for place in places.itertuples(index=False, name=None):
            *task, factor, tokens = place
            columns.append(
                Column(group=str(task[0]), title=f"{tokens:,}", key=f"{task[0]}-{factor:g}x")
            )
            at = (rows[list(TASK)] == task).all(axis=1)
            by_column.append(rows[at & rows["factor"].isin({f"{factor:g}", ""})])
        table_rows = tuple(
            Row(
                title=name,
                entries=tuple(_short(at[at["name"] == name], name, score) for at in by_column),
            )
            for name in names
        )
        trained = sorted(set(own["trained_tokens"]))
        caption = (
            f"{score.unit}, mean over seeds, by tokens of a test example; every model was trained "
            f"at {' or '.join(f'{n:,}' for n in trained)} tokens. Intervals are in the CSV."
        )
        found.append(
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
    return found


def _short(rows: pd.DataFrame, name: str, score: Score) -> Entry:
    """Return the table's entry without its interval, which would not fit."""
    full = entry(rows, name, score)
    if full.value is None:
        return full
    return replace(full, text=f"{score.factor * full.value:.{score.digits}f}")


def extrapolation_parts(
    frame: pd.DataFrame, looks: dict[str, Look], folder: Path
) -> Iterator[tuple[str, str, Table | str]]:
    """Save the figure that the rows allow; yield (stem, heading, table or text of a figure)."""
    rows = extrapolation_rows(frame)
    data = extrapolation_data(rows)
    if data.empty:
        return
    heading = "Beyond the training length"
    for metric, table in extrapolation_tables(rows):
        stem = f"extrapolation-{metric.replace('_', '-')}"
        yield stem, f"{heading}, {metric.replace('_', ' ')}", table
    if data["value"].isna().all():
        yield "extrapolation", "no number among its points, only reasons", ""
        return
    save(extrapolation_figure(data, looks), folder, "extrapolation", data)
    yield "extrapolation", heading, "scores on the test split against evaluation length"

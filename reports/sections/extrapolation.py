"""Scores at lengths that no model was trained for: one panel per task, and a table."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lra.reports.figures.lines import LineDrawing
from lra.reports.rows import model_order
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.tables.pivot import table_of
from lra.reports.tables.places import extremes, place_words, summary
from lra.reports.tables.scores import SCORES, TASK, Score, entry, score_of
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.metrics import JUDGED_BY

COLUMNS = (
    *TASK, "metric", "model", "trained_tokens", "factor", "tokens", "value", "low", "high", "seeds",
    "status", "reason",
)  # fmt: skip


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


def _trained(data: pd.DataFrame) -> str:
    lengths = " or ".join(f"{n:,}" for n in sorted({int(n) for n in data["trained_tokens"]}))
    return f"dashed: the training length, {lengths} tokens; bands: extremes over seeds"


def _guide(axes: Axes, data: pd.DataFrame) -> None:
    for trained in set(data["trained_tokens"]):
        axes.axvline(float(trained), color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)


def _finding(parts: list[pd.DataFrame]) -> str:
    """Return how many scores are worse at the longest length than at the trained one."""
    worse = total = 0
    for part in parts:
        sign = 1 if score_of(str(part["metric"].iloc[0])).higher else -1
        scores = part.pivot(index="model", columns="factor", values="value").dropna()
        if 1.0 in scores and float(part["factor"].max()) > 1:
            worse += int((sign * scores.iloc[:, -1] < sign * scores[1.0]).sum())
            total += len(scores)
    end = "worse at the longest length than at the training length"
    return f"{worse} of {total} scores are {end}" if total > 1 else ""


extrapolation_figure = LineDrawing(
    title="Beyond the training length", panel=TASK, x="tokens",
    across="evaluation length (tokens)", words=partial(place_words, untold=["length"]),
    guide=_guide, subtitle=_trained, finding=_finding,
)  # fmt: skip


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
        columns = []
        points = scored[[*TASK, "factor", "tokens"]].drop_duplicates()
        for *task, factor, tokens in points.itertuples(index=False, name=None):
            at = (rows[list(TASK)] == task).all(axis=1) & rows["factor"].isin((factor, np.nan))
            head = Column(group=str(task[0]), title=f"{tokens:,}", key=f"{task[0]}-{factor:g}x")
            columns.append((head, partial(_short, rows[at], score)))
        trained = " or ".join(f"{n:,}" for n in sorted(set(scored["trained_tokens"])))
        table = table_of(
            [("", name, name) for name in model_order([str(n) for n in scored["model"]])],
            columns, title=f"{score.title} beyond the training length",
            caption=f"{score.unit}, mean over seeds, by tokens of a test example; every model was "
            f"trained at {trained} tokens. Intervals are in the CSV.", stub="model, by length",
        )  # fmt: skip
        tables.append((score.metric, table))
    return tables


def _short(rows: pd.DataFrame, score: Score, name: str) -> Entry:
    """Return the table's entry without its interval, which would not fit."""
    full = entry(rows[rows["name"] == name], score)
    return full if full.value is None else replace(full, text=score.text(full.value))


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

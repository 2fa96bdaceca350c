"""Show scores of trained models at other lengths, in a figure and in tables."""

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
    """Return the rows of trained models at other lengths, with one metric for each task.

    The metric is the first of `JUDGED_BY` that the task has. A failed run has one row without a
    length, which counts for all lengths of its task.
    """
    measured = rows[(rows["runner"] == "extrapolate") & (rows["split"] == "test")].copy()
    for label in ("factor", "tokens", "trained_tokens"):
        measured[label] = [float(labels.get(label, "nan")) for labels in measured["labels"]]
    metric_of_task = {}
    for task, part in measured.groupby("task"):
        metrics = set(part["metric"])
        metric_of_task[task] = next((name for name in JUDGED_BY if name in metrics), "")
    is_score = measured["metric"] == measured["task"].map(metric_of_task)
    return measured[is_score | (measured["factor"].isna() & (measured["status"] != "ok"))]


def extrapolation_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means and extremes over seeds by task, model and length, of `extrapolation_rows`."""
    records: list[dict[str, Any]] = []
    for key, part in rows.groupby(list(TASK), sort=True, dropna=False):
        points = part[part["factor"].notna()]
        if points.empty:
            continue
        metric = str(points["metric"].iloc[0])
        lengths: dict[float, tuple[int, int]] = {}  # (tokens, trained tokens) by factor
        # rows with status "ok" come before most failures
        for row in points.sort_values("status").to_dict("records"):
            lengths.setdefault(row["factor"], (int(row["tokens"]), int(row["trained_tokens"])))
        for name in model_order([str(n) for n in part["name"]]):
            of_model = part[part["name"] == name]
            for factor, (tokens, trained) in sorted(lengths.items()):
                at_length = of_model[of_model["factor"].isin((factor, np.nan))]
                record = dict(zip(TASK, key, strict=True)) | summary(at_length, extremes)
                record |= {"metric": metric, "model": name, "factor": factor}
                records.append(record | {"tokens": tokens, "trained_tokens": trained})
    return pd.DataFrame(records, columns=list(COLUMNS))


def _subtitle(data: pd.DataFrame) -> str:
    """Return the subtitle, which explains the dashed line and the bands."""
    lengths = " or ".join(f"{n:,}" for n in sorted({int(n) for n in data["trained_tokens"]}))
    return f"dashed line: training length, {lengths} tokens; bands: lowest to highest seed"


def _mark_training_length(axes: Axes, data: pd.DataFrame) -> None:
    """Draw a dashed vertical line at each training length."""
    for trained in set(data["trained_tokens"]):
        axes.axvline(float(trained), color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)


def _finding(parts: list[pd.DataFrame]) -> str:
    """Return the title: how many scores are worse at the longest length than at the trained one."""
    worse = total = 0
    for part in parts:
        sign = 1 if score_of(str(part["metric"].iloc[0])).higher else -1
        scores = part.pivot(index="model", columns="factor", values="value").dropna()
        if 1.0 in scores and float(part["factor"].max()) > 1:
            worse += int((sign * scores.iloc[:, -1] < sign * scores[1.0]).sum())
            total += len(scores)
    ending = "worse at the longest length than at the training length"
    return f"{worse} of {total} models score {ending}" if total > 1 else ""


extrapolation_figure = LineDrawing(
    title="Beyond the training length", panel=TASK, x="tokens",
    across="evaluation length (tokens)", words=partial(place_words, untold=["length"]),
    guide=_mark_training_length, subtitle=_subtitle, finding=_finding,
)  # fmt: skip


def extrapolation_tables(rows: pd.DataFrame) -> list[tuple[str, Table]]:
    """Return (metric, table) for each score of `rows`, which come from `extrapolation_rows`."""
    data = extrapolation_data(rows)
    tables = []
    for score in SCORES.values():
        scored = data[data["metric"] == score.metric]
        if scored.empty:
            continue
        columns = []
        points = scored[[*TASK, "factor", "tokens"]].drop_duplicates()
        for *task, factor, tokens in points.itertuples(index=False, name=None):
            used = (rows[list(TASK)] == task).all(axis=1) & rows["factor"].isin((factor, np.nan))
            head = Column(group=str(task[0]), title=f"{tokens:,}", key=f"{task[0]}-{factor:g}x")
            columns.append((head, partial(_entry_without_interval, rows[used], score)))
        trained = " or ".join(f"{n:,}" for n in sorted(set(scored["trained_tokens"])))
        table = table_of(
            [("", name, name) for name in model_order([str(n) for n in scored["model"]])],
            columns, title=f"{score.title} beyond the training length",
            caption=f"Numbers are {score.unit}, as means over seeds. Columns are lengths of the "
            f"test examples in tokens; every model was trained at {trained} tokens. The CSV has "
            "intervals.", stub="model, by length",
        )  # fmt: skip
        tables.append((score.metric, table))
    return tables


def _entry_without_interval(rows: pd.DataFrame, score: Score, name: str) -> Entry:
    """Return the score of a model without its interval, for which the table has no room."""
    full = entry(rows[rows["name"] == name], score)
    return full if full.value is None else replace(full, text=score.text(full.value))


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table for each score, and one figure."""
    measured = extrapolation_rows(rows)
    heading = "Beyond the training length"
    for metric, table in extrapolation_tables(measured):
        name = f"extrapolation-{metric.replace('_', '-')}"
        yield TablePart(name, f"{heading}, {metric.replace('_', ' ')}", table)
    yield PagesPart(
        "extrapolation", heading, "scores on the test split against evaluation length",
        extrapolation_figure, panel=TASK, along="tokens", data=extrapolation_data(measured),
    )  # fmt: skip

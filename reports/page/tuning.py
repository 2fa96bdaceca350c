"""Trials of a search for the page: a line for each, across its options to its score."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lra.reports.page.chart import ChartAxis, ChartPanel, ChartPoint, PageChart
from lra.reports.rows import MARKS, as_text
from lra.reports.statistics.tuning import higher_is_better
from lra.reports.tables.searches import (
    RUNNER,
    Searches,
    as_number,
    log_options,
    option_name,
    score_of,
    whole,
)

BETWEEN = " | "
"""Between the names of axes."""


def tuning_chart(frame: pd.DataFrame) -> PageChart | None:
    """Return the chart of trials; None where there is no search.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
    """
    if not (frame["runner"] == RUNNER).any():
        return None
    searches = Searches(frame)
    metrics = [str(metric) for metric in searches.trials["metric"].unique()]
    panels = [panel for metric in metrics for panel in _panels(searches, metric)]
    if not panels:
        return None
    return PageChart(
        name="trials", kind="parallel", heading="Trials of the search", panels=panels,
        about="A line is a trial of full length: its options, each on an axis of its own, and its "
        "validation score, the better the higher. Draw a box over an axis to keep the trials "
        "that pass through it; a double click lets go.",
    )  # fmt: skip


def _panels(searches: Searches, metric: str) -> Iterator[ChartPanel]:
    by_place: dict[tuple[Any, ...], list[pd.DataFrame]] = {}
    for arm, trials in searches.per_arm(metric):
        by_place.setdefault(arm[:-1], []).append(trials)
    for place, parts in by_place.items():
        trials = pd.concat(parts)
        full, logs = whole(trials, untuned=True), log_options(trials)
        names = list(dict.fromkeys(name for point in full["point"] for name in point))
        if full.empty or not names:
            continue
        axes = [_places([p.get(n) for p in full["point"]], log=n in logs) for n in names]
        scores = full["score"] if higher_is_better(metric) else -full["score"]
        axes.append(_places([*scores.fillna(scores.min())], log=False))
        score = score_of(metric)
        texts = [_text(trial, score.factor, metric) for trial in full.to_dict("records")]
        yield ChartPanel(
            choice={"score": score.title, "task": f"{place[0]}, length {as_text(place[3])}"},
            x=ChartAxis(title=BETWEEN.join([*map(option_name, names), score.title.lower()])),
            y=ChartAxis(title="from the least to the most of each axis"),
            points=[
                ChartPoint(model=str(model), x=axis, y=at, text=text)
                for axis, placed in enumerate(axes)
                for model, at, text in zip(full["model"], placed, texts, strict=True)
                if at is not None
            ],
            better="higher",
        )


def _places(values: list[Any], *, log: bool) -> list[float | None]:
    """Return where on an axis from 0 to 1 values lie; None of those that are not there."""
    there = [value for value in values if value is not None]
    numbers = [as_number(value) for value in there]
    if any(number is None for number in numbers):
        known = sorted({str(value) for value in there})
        at = {name: place / max(1, len(known) - 1) for place, name in enumerate(known)}
        return [None if value is None else at[str(value)] for value in values]
    series = pd.Series([as_number(value) for value in values], dtype=float)
    if log:
        series = pd.Series(np.log(series.to_numpy(dtype=float)))
    low, high = series.min(), series.max()
    shares = (series - low) / ((high - low) or 1.0)
    return [None if pd.isna(share) else float(share) for share in shares]


def _text(trial: dict[Any, Any], factor: float, metric: str) -> str:
    words = ", ".join(f"{option_name(name)}={value}" for name, value in trial["point"].items())
    found = (
        f"{metric} {factor * trial['score']:.4g}"
        if trial["status"] == "ok"
        else MARKS[trial["status"]]
    )
    return f"trial {trial['trial']} of study {trial['study']}: {words}; {found}"

"""Trials of a search for the page: a line for each, across its options to its score."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from lra.reports.page.chart import ChartAxis, ChartPanel, ChartPoint, PageChart
from lra.reports.rows import MARKS
from lra.reports.statistics.tuning import higher_is_better
from lra.reports.tables.places import place_title
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
            choice={"score": score.title, "task": place_title(place)},
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
    numbers = [as_number(value) for value in values if value is not None]
    if None in numbers:
        known = sorted({str(value) for value in values if value is not None})
        values = [None if value is None else known.index(str(value)) for value in values]
    placed = [
        None if value is None or math.isnan(value) else math.log(value) if log else float(value)
        for value in values
    ]
    there = [place for place in placed if place is not None] or [0.0]
    low, across = min(there), (max(there) - min(there)) or 1.0
    return [None if place is None else (place - low) / across for place in placed]


def _text(trial: dict[Any, Any], factor: float, metric: str) -> str:
    words = ", ".join(f"{option_name(name)}={value}" for name, value in trial["point"].items())
    found = (
        f"{metric} {factor * trial['score']:.4g}"
        if trial["status"] == "ok"
        else MARKS[trial["status"]]
    )
    return f"trial {trial['trial']} of study {trial['study']}: {words}; {found}"

"""Learning curves for the page: everything that has a step, thinned, and losses by class."""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from lra.reports.figures.curves import CLASSES, EVALUATION, TRAINING, Axis, class_data
from lra.reports.page.chart import ChartAxis, ChartPanel, ChartPoint, PageChart
from lra.reports.rows import as_text, model_order
from lra.reports.tables.scores import splits
from lra.runners.metrics import METRICS

MOST_POINTS = 8_000
"""Of all curves of a page."""
FEWEST = 40
"""Points that a curve keeps, however many curves there are."""
_KEYS = ["metric", "split", *TRAINING, "name", "step"]


def learning_chart(frame: pd.DataFrame) -> PageChart | None:
    """Return the chart of curves; None where nothing has a step.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
    """
    panels = [*_by_step(frame), *_by_class(frame)]
    if not panels:
        return None
    kept, per_curve = _thinned(panels)
    about = "Means over seeds; bands are the extremes over seeds."
    if per_curve:
        about += f" Long curves are thinned to about {per_curve} points; the rows have all."
    return PageChart(
        name="learning", kind="lines", heading="Learning curves", about=about, panels=kept
    )


def _by_step(frame: pd.DataFrame) -> Iterator[ChartPanel]:
    curve = frame[frame["step"].notna() & (frame["status"] == "ok") & (frame["baseline"] == "")]
    if curve.empty:
        return
    grouped = curve.groupby(_KEYS, dropna=False, sort=True)
    data = grouped["value"].agg(["mean", "min", "max", "size"]).reset_index()
    keys = ["metric", "split", *TRAINING, "name"]
    cells = {
        key: tuple(dict.fromkeys(map(str, group)))
        for key, group in curve.groupby(keys, dropna=False)["cell"].unique().items()
    }
    for key, part in data.groupby(keys[:-1], dropna=False, sort=False):
        metric, split, task, version, source = key
        if part["step"].nunique() < 2:
            continue
        title = str(metric).replace("_", " ") + (f", {split} split" if split else "")
        unit = METRICS[str(metric)].unit
        higher = METRICS[str(metric)].higher_is_better
        lines = {str(name): line for name, line in part.groupby("name", sort=False)}
        yield ChartPanel(
            choice={"metric": title, "task": f"{task} ({source}, version {as_text(version)})"},
            x=ChartAxis(title="optimiser step"),
            y=ChartAxis(title=title, unit=unit if unit in {"s", "B"} else ""),
            points=[
                ChartPoint(
                    model=name,
                    x=int(step),
                    y=float(mean),
                    low=float(low) if count > 1 else None,
                    high=float(high) if count > 1 else None,
                    text=f"{count} seeds" if count > 1 else "",
                    cells=cells[(*key, name)],
                )
                for name in model_order(list(lines))
                for step, mean, low, high, count in zip(
                    *(lines[name][c] for c in ("step", "mean", "min", "max", "size")), strict=True
                )
            ],
            band="extremes over seeds",
            better="" if higher is None else "higher" if higher else "lower",
        )


def _by_class(frame: pd.DataFrame) -> Iterator[ChartPanel]:
    for split in splits(frame):
        for kind, axis in CLASSES.items():
            data = class_data(frame, split, kind)
            if not data.empty:
                yield from _class_panels(data, axis, split)


def _class_panels(data: pd.DataFrame, axis: Axis, split: str) -> Iterator[ChartPanel]:
    panel = [column for column in EVALUATION if column in data.columns]
    for key, part in data.groupby(panel, dropna=False, sort=True):
        task, version, source, length, *marks = key
        facts = [str(source), f"version {as_text(version)}", f"length {length}"]
        facts += [str(mark) for mark in marks if mark]
        columns = (part[c] for c in ("model", "place", "loss", "low", "high", "seeds"))
        yield ChartPanel(
            choice={
                "metric": f"{axis.title.lower()}, {split} split",
                "task": f"{task} ({', '.join(facts)})",
            },
            x=ChartAxis(title=axis.x, unit="tokens", scale="symlog"),
            y=ChartAxis(title=axis.y),
            points=[
                ChartPoint(
                    model=str(model), x=int(place), y=float(loss),
                    low=float(low) if seeds > 1 else None, high=float(high) if seeds > 1 else None,
                    text=f"{seeds} seeds" if seeds > 1 else "",
                )
                for model, place, loss, low, high, seeds in zip(*columns, strict=True)
            ],
            band="extremes over seeds",
            better="lower",
        )  # fmt: skip


def _thinned(panels: list[ChartPanel]) -> tuple[list[ChartPanel], int]:
    """Return panels of few enough points, and how many a long curve keeps; 0 where all stay."""
    curves: dict[tuple[int, str], list[ChartPoint]] = {}
    for number, panel in enumerate(panels):
        for point in panel.points:
            curves.setdefault((number, point.model), []).append(point)
    if sum(map(len, curves.values())) <= MOST_POINTS:
        return panels, 0
    most = max(FEWEST, MOST_POINTS // len(curves))
    kept: dict[int, list[ChartPoint]] = {}
    for (number, _), points in curves.items():
        if len(points) > most:
            # the first and the last stay; between them every so many
            last = len(points) - 1
            points = [points[round(i * last / (most - 1))] for i in range(most)]  # noqa: PLW2901
        kept.setdefault(number, []).extend(points)
    return [replace(panel, points=kept[n]) for n, panel in enumerate(panels)], most

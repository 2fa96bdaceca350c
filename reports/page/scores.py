"""Scores for the page: with intervals and baselines, and against what they cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from lra.reports.page.chart import ChartAxis, ChartPanel, ChartPoint, PageChart
from lra.reports.page.costs import ABSOLUTE, TITLES
from lra.reports.rows import UNCERTAIN
from lra.reports.tables.scores import BASELINES, ORACLES, SCORES, Score, accuracy_table, splits
from lra.reports.tables.table import Column, Table
from lra.runners.metrics import METRICS

TRAINING_COSTS = ("train_step_time", "train_time", "process_peak_bytes", "parameters", "flops")
"""Metrics of a training itself that its score is drawn against."""
MOST_LENGTHS = 3
"""Lengths at which costs are offered for scores: the longest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredColumn:
    """One column of a table of scores."""

    score: Score
    split: str
    column: Column
    points: Sequence[ChartPoint]
    baselines: Sequence[tuple[str, float]]

    @property
    def axis(self) -> ChartAxis:
        """Return the axis of its numbers."""
        unit = "%" if self.score.shares else ""
        return ChartAxis(title=self.score.title.lower() + (f" ({unit})" if unit else ""), unit=unit)

    @property
    def better(self) -> str:
        """Return which numbers are better, higher or lower ones."""
        return "higher" if METRICS[self.score.metric].higher_is_better else "lower"

    def choice(self) -> dict[str, str]:
        """Return what stands in the menus of a chart."""
        task = f"{self.column.group} ({self.column.title})"
        return {"score": self.score.title, "task": task, "split": self.split}


def scored_columns(frame: pd.DataFrame) -> Iterator[ScoredColumn]:
    """Yield every score of every split and task that the tables of scores hold.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
    """
    for score in SCORES.values():
        for split in splits(frame) or ["test"]:
            table = accuracy_table(frame, split, score)
            if table is not None:
                yield from _columns(table, score, split)


def _columns(table: Table, score: Score, split: str) -> Iterator[ScoredColumn]:
    for number, column in enumerate(table.columns):
        points, baselines = [], []
        for row in table.rows:
            entry = row.entries[number]
            if row.section in (BASELINES, ORACLES):
                if entry.value is not None:
                    baselines.append((row.title, score.factor * entry.value))
                continue
            if entry.value is None:
                continue
            i = entry.interval
            points.append(
                ChartPoint(
                    model=row.title,
                    x=score.factor * entry.value,
                    low=None if i is None else score.factor * i.low,
                    high=None if i is None else score.factor * i.high,
                    text=entry.text + (f" ({i.source})" if i is not None else ""),
                    cells=entry.cells,
                )
            )
        if points:
            yield ScoredColumn(
                score=score, split=split, column=column, points=points, baselines=baselines
            )


def score_chart(scored: Sequence[ScoredColumn]) -> PageChart | None:
    """Return the chart of scores with their intervals; None where there are none."""
    panels = [
        ChartPanel(
            choice=column.choice(),
            x=column.axis,
            y=ChartAxis(title=""),
            points=sorted(column.points, key=lambda p: -p.x if column.better == "higher" else p.x),
            rules=dict(column.baselines),
            band="95 % interval; the tip says of what",
            better=column.better,
        )
        for column in scored
    ]
    if not panels:
        return None
    return PageChart(
        name="scores",
        kind="dots",
        heading="Scores",
        about="Means over seeds, with 95 % intervals over seeds, or over examples where there is "
        "one seed. Grey diamonds and dashed lines are baselines that need no long-range model.",
        panels=panels,
    )


def trade_off_chart(
    frame: pd.DataFrame, scored: Sequence[ScoredColumn], costs: PageChart | None
) -> PageChart | None:
    """Return the chart of test scores against cost; None where no two models have both.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
        scored: its scores.
        costs: the chart of costs of the same rows.
    """
    panels = []
    for column in scored:
        if column.split != "test":
            continue
        for about, axis, by_model, marks in [
            *_training_costs(frame, column),
            *_measured_costs(costs),
        ]:
            points = [
                ChartPoint(
                    model=point.model,
                    x=by_model[point.model],
                    y=point.x,
                    low=point.low,
                    high=point.high,
                    text="; ".join(filter(None, (point.text, marks.get(point.model)))),
                    cells=point.cells,
                    mark=UNCERTAIN if marks.get(point.model) else "",
                )
                for point in column.points
                if by_model.get(point.model)
            ]
            if len(points) > 1:
                choice = column.choice() | {"against": about}
                del choice["split"]
                panels.append(
                    ChartPanel(
                        choice=choice, x=axis, y=column.axis, points=points, band="95 % interval",
                        better=column.better,
                    )
                )  # fmt: skip
    if not panels:
        return None
    return PageChart(
        name="trade-off",
        kind="scatter",
        heading="Score against cost",
        about="Test scores, means over seeds, against the median cost of the same model. The best "
        "models are those that no other one beats in both.",
        panels=panels,
    )


Costs = tuple[str, ChartAxis, dict[str, float], dict[str, str]]
"""What it is, the axis, numbers by model, and what disturbed those that are uncertain."""


def _training_costs(frame: pd.DataFrame, column: ScoredColumn) -> Iterator[Costs]:
    """Yield what the trainings behind these scores cost."""
    cells = {cell for point in column.points for cell in point.cells}
    rows = frame[
        frame["cell"].isin(cells) & frame["step"].isna() & (frame["status"] == "ok")
        & (frame["baseline"] == "")
    ]  # fmt: skip
    for metric in TRAINING_COSTS:
        here = rows[rows["metric"] == metric]
        values = here.groupby("name")["value"].median()
        if len(values) > 1:
            axis = ChartAxis(title=TITLES[metric], unit=METRICS[metric].unit, scale="log")
            shaken = here[here["disturbed"] != ""]
            marks = dict(zip(shaken["name"], shaken["disturbed"], strict=True))
            yield TITLES[metric], axis, {str(k): float(v) for k, v in values.items()}, marks


def _measured_costs(costs: PageChart | None) -> Iterator[Costs]:
    """Yield costs at the longest lengths, of the metrics that a reader weighs scores against."""
    titles = {TITLES["time"], TITLES["peak_tensor_bytes"], TITLES["flops"], TITLES["token_time"]}
    panels = costs.panels if costs else ()
    several = len({panel.choice["setting"] for panel in panels}) > 1
    for panel in panels:
        choice = panel.choice
        if choice["metric"] not in titles or choice["scale"] != ABSOLUTE:
            continue
        lengths = sorted({point.x for point in panel.points if point.y}, reverse=True)
        for length in lengths[:MOST_LENGTHS]:
            here = [p for p in panel.points if p.y and p.x == length]
            values = {p.model: float(p.y) for p in here if p.y}
            marks = {p.model: p.text for p in here if p.mark == UNCERTAIN}
            about = f"{choice['metric']}, {choice['of']} at {length:,} tokens"
            about += f" ({choice['setting']})" if several else ""
            yield about, panel.y, values, marks

"""Draw final scores against cost: the time of a training step, and multiply-adds of one example.

The time of a step comes from the trainings themselves, or from `runner=scaling` at a longer length.
Multiply-adds are those of a forward pass at the same length, as in Lite Transformer's paper; they
come from `runner=scaling`, too, so the report needs rows of both runners.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from lra.reports.figures.drawing import OTHERS, Look, legend_name, named_looks
from lra.reports.figures.findings import front, model_list
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.figures.ticks import seconds
from lra.reports.rows import WAITING, as_text, by_setting, cost_points, cost_rows, model_order
from lra.reports.sections.score_data import PANEL, panel_words, score_data
from lra.reports.sections.section import LeftOut, PagesPart, Section
from lra.reports.statistics.intervals import LEVEL
from lra.reports.tables.places import by_place
from lra.reports.tables.scores import TASK, score_of

_NAMED = 5
"""The most models that a title names."""
_COUNTED = ("task", "task_version", "source", "length")
"""Columns that decide the multiply-adds of a model."""


class _Cost(NamedTuple):
    """A cost on the horizontal axis."""

    column: str
    panel: tuple[str, ...]
    """The columns in which panels differ."""
    axis: str
    """The label of the axis; {NAME} stands for a column of the panel."""
    title: str
    subtitle: str
    given: str
    """The words for the cost in a title; {NAME} stands for a column of the panel."""
    label: Callable[[float], str]
    """A function from a number to its label on the axis."""


MULTIPLY_ADDS = _Cost(
    "multiply_adds", PANEL, "multiply-adds of one example (millions)",
    "Score against multiply-adds", "multiply-adds of a forward pass at the training length",
    "number of multiply-adds", lambda number: f"{number / 1e6:,g}",
)  # fmt: skip
STEP_TIME = _Cost(
    "step_time", (*PANEL, "machine"), "time of a training step",
    "Score against the time of a training step",
    f"times are medians over steps, without trainings that waited for a processor more than "
    f"{WAITING:.0%} of the time", "step time", seconds,
)  # fmt: skip
LONG_STEP_TIME = _Cost(
    "long_step_time", (*PANEL, "machine", "tokens"), "time of a training step at {tokens:,} tokens",
    "Score against the time of a training step at a longer length",
    "times are medians for one sequence; hollow points: another process disturbed the time",
    "time of a training step at {tokens:,} tokens", seconds,
)  # fmt: skip


def score_cost_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the score and the multiply-adds of each model that has both."""
    passes = rows[
        (rows["runner"] == "scaling") & (rows["mode"] == "forward") & (rows["reference"] == "")
        & (rows["status"] == "ok")
    ]  # fmt: skip
    places = ["cell", *_COUNTED, "name"]
    flops, batch_sizes = (
        passes[passes["metric"] == metric].groupby(places)["value"].first()
        for metric in ("flops", "batch_size")
    )
    # a multiply-add is two operations
    multiply_adds = (flops / batch_sizes / 2).rename(MULTIPLY_ADDS.column).dropna()
    means = multiply_adds.groupby([*_COUNTED, "name"]).mean().reset_index()
    return _join_scores(rows, means, MULTIPLY_ADDS)


def score_time_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the score and the time of a training step of each model, by machine.

    Trainings that other processes disturbed are excluded.
    """
    # rows with a step are values during a training
    trained = rows[(rows["runner"] == "train") & rows["step"].isna() & (rows["status"] == "ok")]
    timed = trained[(trained["metric"] == "train_step_time") & (trained["disturbed"] == "")]
    parts = timed[["hardware", "device", "precision"]].to_numpy()
    machines = [", ".join(dict.fromkeys(map(as_text, part))) for part in parts]
    grouped = timed.assign(machine=machines).groupby([*TASK, "name", "machine"], dropna=False)
    times = grouped["value"].median().rename("step_time").reset_index()
    return _join_scores(rows, times, STEP_TIME)


def untimed_trainings(rows: pd.DataFrame) -> Iterator[LeftOut]:
    """Yield a note about disturbed trainings, if a model has no point because of them."""
    timed = rows[(rows["metric"] == "train_step_time") & rows["step"].isna()]
    disturbed = timed["disturbed"][timed["disturbed"] != ""]
    all_points = score_time_data(rows.assign(disturbed=""))  # with disturbed trainings
    if len(disturbed) and len(all_points) > len(score_time_data(rows)):
        reason = (
            f"other processes disturbed {len(disturbed)} of {len(timed)} trainings, for example: "
            f"{disturbed.iloc[0]}"
        )
        yield LeftOut("score-by-step-time", reason)


def score_long_time_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the score of each model, and the time of a training step of one long sequence.

    The length is the longest one among those at which most models were timed.
    """
    records = []
    for part in by_setting(cost_rows(rows[rows["runner"] == "scaling"])):
        place = part.rows.iloc[0][["task", "task_version", "source"]].to_dict()
        points = [p for p in cost_points(part.rows) if p.mode == "step" and p.time.ok]
        models = Counter(point.length for point in points)
        longest = max(models, key=lambda length: (models[length], length), default=0)
        for point in points:
            time = point.per_sequence(point.time)
            if point.length == longest and time.ok:
                records.append({
                    **place, "name": point.model, "machine": part.differences, "tokens": longest,
                    "long_step_time": time.value, "disturbed": time.disturbed,
                })  # fmt: skip
    return _join_scores(rows, pd.DataFrame(records), LONG_STEP_TIME)


def _join_scores(rows: pd.DataFrame, costs: pd.DataFrame, cost: _Cost) -> pd.DataFrame:
    """Return costs with scores; panels with fewer than two models are dropped."""
    if costs.empty:
        return costs
    scores = score_data(rows)
    scores = scores[(scores["baseline"] == "") & scores["score"].notna()].drop(columns="baseline")
    costs = costs.rename(columns={"name": "model"})
    keys = [*{*costs.columns} & {*TASK, "model"}]
    data = scores.merge(costs, on=keys) if len(scores) else scores
    if data.empty:
        return data
    several = data.groupby(list(cost.panel), dropna=False)["model"].transform("nunique") > 1
    return data[several].sort_values([*cost.panel, cost.column], ignore_index=True)


def score_cost_figure(
    data: pd.DataFrame, looks: dict[str, Look], cost: _Cost = MULTIPLY_ADDS
) -> Figure:
    """Return a figure of scores against a cost: a panel for each task and score."""
    parts = by_place(data, cost.panel)
    best = [*dict.fromkeys(name for _, part in parts for name in _front_models(part, cost))]
    order = [*best, *(n for n in model_order([*data["model"]]) if n not in best)]
    title = cost.title
    if len(parts) == 1 and len(best) <= _NAMED:
        metric = score_of(str(data["metric"].iloc[0])).title.lower()
        title = f"Best {metric} for a given {cost.given.format(**data.iloc[0])}: {model_list(best)}"
    return draw_panels(
        [(panel_words(cost.panel, key), part) for key, part in parts],
        partial(_draw_scores, looks=named_looks(looks, order, lines=False), cost=cost),
        title=title, plot=(3.0, 2.3), lines=False,
        subtitle=f"scores are means over seeds on the test split, with {100 * LEVEL:g} % "
        f"intervals; dashed line: the best score for each cost; {cost.subtitle}",
    )  # fmt: skip


def _front_models(part: pd.DataFrame, cost: _Cost) -> list[str]:
    """Return the models that no other model beats in both score and cost, the cheapest first."""
    higher = score_of(str(part["metric"].iloc[0])).higher
    return front(part, cost.column, "score", higher=higher)


def _draw_scores(
    axes: Axes, part: pd.DataFrame, looks: dict[str, Look], cost: _Cost
) -> dict[str, Line2D]:
    """Draw the points of one panel, and the front; return a handle for each model."""
    handles = {}
    key = part.iloc[0]
    score = score_of(str(key["metric"]))
    best = part.set_index("model").loc[_front_models(part, cost)]
    axes.plot(
        best[cost.column], score.factor * best["score"], color="0.55", linewidth=0.9,
        linestyle=(0, (4, 2)), drawstyle="steps-post", marker="", zorder=1,
    )  # fmt: skip
    for point in part.to_dict("records"):
        look, name, x = looks[point["model"]], point["model"], point[cost.column]
        middle, low, high = (score.factor * point[c] for c in ("score", "low", "high"))
        axes.plot([x, x], [low, high], color=look.color, linewidth=1.0, marker="")
        (handles[name],) = axes.plot(
            [x], [middle], linestyle="none", marker=look.marker, color=look.color,
            label=legend_name(name), fillstyle="none" if point.get("disturbed") else "full",
            zorder=2 if look == OTHERS else 3,
        )  # fmt: skip
    axes.set_xlabel(cost.axis.format(**key))
    axes.set_ylabel(score.axis)
    _scale_costs(axes, part[cost.column], cost)
    return handles


def _scale_costs(axes: Axes, numbers: "pd.Series[float]", cost: _Cost) -> None:
    """Make the horizontal axis logarithmic if costs differ by more than a factor of 10."""
    low, high = float(numbers.min()), float(numbers.max())
    if high > 10 * low > 0:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.4, high * 1.4)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: cost.label(number)))


def _make_section(
    name: str, cost: _Cost, data: Callable[[pd.DataFrame], pd.DataFrame], text: str
) -> Section:
    """Return the section of one cost, whose figure is made from `data`; `text` describes it."""
    draw = partial(score_cost_figure, cost=cost)
    part = PagesPart(name, cost.title, text, draw, panel=cost.panel, number="score")
    return Section(name=name, heading=cost.title, data=data, figure=part)


score_costs = _make_section(
    "score-by-multiply-adds", MULTIPLY_ADDS, score_cost_data,
    "score against multiply-adds of one example",
)  # fmt: skip
score_times = _make_section(
    "score-by-step-time", STEP_TIME, score_time_data, "score against the time of a training step"
)
score_long_times = _make_section(
    "score-by-long-step-time", LONG_STEP_TIME, score_long_time_data,
    "score against the time of a training step at a longer length",
)  # fmt: skip

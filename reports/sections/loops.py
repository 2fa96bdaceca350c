"""Show scores of trained models with several numbers of passes through their loop."""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from lra.reports.figures.lines import LineDrawing, of_score
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot, SeedMeans
from lra.reports.tables.places import Place, by_place, place_words
from lra.reports.tables.scores import TASK, score_of
from lra.reports.tables.table import Column, Entry
from lra.runners.metrics import JUDGED_BY
from lra.runners.records import is_oracle

LABELS = ("passes", "trained_passes")
_means = SeedMeans(metrics=JUDGED_BY, labels=LABELS)


def loop_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds by task, model and passes, of one metric for each task.

    The metric is the first of `JUDGED_BY` that the task has. `baseline` is the best score of a
    baseline in the same rows, without oracles; NaN without one.
    """
    measured = rows[(rows["runner"] == "loops") & (rows["split"] == "test")]
    data = _means(measured)
    first = {
        task: next((name for name in JUDGED_BY if name in set(part["metric"])), "")
        for task, part in data.groupby("task")
    }
    data = data[data["metric"] == data["task"].map(first)]
    best = _best_baselines(rows)
    places = zip(*(data[column] for column in (*TASK, "metric")), strict=True)
    return data.assign(baseline=[best.get(place, math.nan) for place in places])


def _best_baselines(rows: pd.DataFrame) -> dict[Place, float]:
    """Return the best score of a baseline on the test split, by task and metric."""
    of_baselines = (rows["baseline"] != "") & ~rows["baseline"].map(is_oracle).astype(bool)
    scored = rows[of_baselines & (rows["split"] == "test") & (rows["status"] == "ok")]
    best = {}
    for place, part in by_place(scored, (*TASK, "metric")):
        means = part.groupby("baseline")["value"].mean()
        best[place] = float(means.max() if score_of(str(place[-1])).higher else means.min())
    return best


def _lines(data: pd.DataFrame) -> Mapping[str, str]:
    """Return the number of passes of each line of a model, in ascending order."""
    counts = sorted({*data["passes"]} - {ALL}, key=int)
    return {f"{count} passes" if count != "1" else "1 pass": count for count in counts}


def _entry(data: pd.DataFrame, count: str) -> Entry:
    """Return the score with this number of passes, or the reason why there is none."""
    rows = data[data["passes"].isin((count, ALL))]
    measured = rows[rows["value"].notna()]
    if measured.empty:
        return missing_entry(rows, "not measured")
    value, score = float(measured["value"].iloc[0]), score_of(str(measured["metric"].iloc[0]))
    return Entry(text=score.text(value), value=value)


def _draw_guides(axes: Axes, data: pd.DataFrame) -> None:
    """Draw dashed lines at the passes in training, and a dotted one at the best baseline."""
    look: dict[str, Any] = {"color": "0.55", "linewidth": 0.9, "zorder": 1}
    for trained in set(data["trained_passes"]) - {ALL}:
        axes.axvline(float(trained), linestyle=(0, (4, 2)), **look)
    for baseline in {*data["baseline"].dropna()}:
        score = of_score(data)[1] * float(baseline)
        low, high = axes.get_ylim()
        margin = 0.06 * (high - low)
        axes.set_ylim(min(low, score - margin), max(high, score + margin))
        axes.axhline(score, linestyle=(0, (1, 2)), **look)


def _subtitle(data: pd.DataFrame) -> str:
    """Return the subtitle, which explains lines and bands."""
    dotted = "dotted line: best baseline; " if data["baseline"].notna().any() else ""
    return f"dashed line: passes in training; {dotted}bands: lowest to highest seed"


loop_table = Pivot(
    title="Scores by passes through the loop",
    caption="Numbers are scores on the test split, as means over seeds. All lines of a model are "
    "one training, evaluated with several numbers of passes.",
    columns=((Column(title="score"), _entry),),
    lines=_lines,
)
loop_figure = LineDrawing(
    title="Scores by passes through the loop", panel=TASK, x="passes",
    across="passes through the loop", words=partial(place_words, untold=["task_version"]),
    guide=_draw_guides, subtitle=_subtitle, place="number of passes",
)  # fmt: skip


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table, and one figure."""
    data = loop_data(rows)
    heading = "Passes through loops"
    yield TablePart("loops", heading, loop_table(data))
    points = data[data["passes"] != ALL].astype({"passes": float}).sort_values("passes")
    yield PagesPart(
        "loops", heading, "scores on the test split against the number of passes", loop_figure,
        panel=TASK, along="passes", data=points,
    )  # fmt: skip

"""Show scores of trained models with several numbers of passes through their loop."""

from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from lra.reports.figures.lines import LineDrawing
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot, SeedMeans
from lra.reports.tables.places import place_words
from lra.reports.tables.scores import TASK, score_of
from lra.reports.tables.table import Column, Entry
from lra.runners.metrics import JUDGED_BY

LABELS = ("passes", "trained_passes")
_means = SeedMeans(metrics=JUDGED_BY, labels=LABELS)


def loop_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over seeds by task, model and passes, of one metric for each task.

    The metric is the first of `JUDGED_BY` that the task has.
    """
    measured = rows[(rows["runner"] == "loops") & (rows["split"] == "test")]
    data = _means(measured)
    first = {
        task: next((name for name in JUDGED_BY if name in set(part["metric"])), "")
        for task, part in data.groupby("task")
    }
    return data[data["metric"] == data["task"].map(first)]


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


def _mark_training(axes: Axes, data: pd.DataFrame) -> None:
    """Draw a dashed vertical line at each number of passes in training."""
    for trained in set(data["trained_passes"]) - {ALL}:
        axes.axvline(float(trained), color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)


loop_table = Pivot(
    title="Scores by passes through the loop",
    caption="Numbers are scores on the test split, as means over seeds. All lines of a model are "
    "one training, evaluated with several numbers of passes.",
    columns=((Column(title="score"), _entry),),
    lines=_lines,
)
loop_figure = LineDrawing(
    title="Scores by passes through the loop", panel=TASK, x="passes",
    across="passes through the loop", words=partial(place_words, untold=[]), guide=_mark_training,
    subtitle=lambda _: "dashed line: passes in training; bands: lowest to highest seed",
    place="number of passes",
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

"""Show after how many training steps models reached a target on validation."""

import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import pandas as pd

from lra.reports.rows import short, with_labels
from lra.reports.sections.section import Part, TablePart
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import Pivot
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry

PLACE = (*TASK, "stop_at")


def target_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each run that had a target: its steps, or the reason why it has none.

    A run that failed before its end has not reached its target either.
    """
    rows = with_labels(rows[rows["runner"] == "train"], ("stop_at",))
    final = rows[(rows["stop_at"] != "") & rows["step"].isna()]
    outcome = final[(final["metric"] == "steps_to_target") | (final["status"] != "ok")]
    # A failed run has no row of this metric; a run has one line.
    outcome = outcome.sort_values(
        "metric", key=lambda metric: metric != "steps_to_target", kind="stable"
    ).drop_duplicates("cell")
    return outcome.assign(model=outcome["name"])


def _entry(runs: pd.DataFrame) -> Entry:
    """Return the mean number of steps, or how many runs reached the target if some did not."""
    if runs.empty:
        return absent("not run")
    is_reached = runs["status"] == "ok"
    steps = [float(value) for value in runs[is_reached]["value"]]
    cells = tuple(str(cell) for cell in runs["cell"])
    facts: dict[str, Any] = {"reached": len(steps), "seeds": len(runs)}
    if len(steps) == len(runs):
        mean = sum(steps) / len(steps)
        facts |= {"low": min(steps), "high": max(steps)}
        return Entry(text=f"{mean:,.0f}", value=mean, facts=facts, cells=cells)
    notes = [short(str(reason)) for reason in dict.fromkeys(runs[~is_reached]["reason"])]
    if steps:
        notes.insert(
            0, f"steps of the others: {', '.join(f'{step:,.0f}' for step in sorted(steps))}"
        )
    # With failures as infinity, more than half of the runs must reach the target for a median.
    infinite = [*sorted(steps), *[math.inf] * (len(runs) - len(steps))]
    if math.isfinite(middle := median(infinite)):
        facts["median"] = middle
        notes.insert(0, f"the median over seeds is {middle:,.0f} steps, with failures as infinity")
    text = f"{len(steps)} of {len(runs)} reached"
    return Entry(text=text, notes=(*notes,), facts=facts, cells=cells)


target_table = Pivot(
    title="Training steps to a target",
    caption="Numbers are training steps until validation first reached the target "
    "(`runner.stop_at`), as means over seeds. If some runs never reached it, the table has the "
    "number of runs that did, and no mean; the median then counts the others as infinity.",
    columns=((Column(title="steps"), _entry),),
    places=PLACE,
    marks=True,
)


def target_steps(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table, if a training had a target."""
    data = target_data(rows)
    if len(data):
        yield TablePart("target-steps", "Training steps to a target", target_table(data))

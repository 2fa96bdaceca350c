"""Show rare errors of trained models: error rates by distance, on a logarithmic axis."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from lra.reports.figures.lines import LineDrawing
from lra.reports.rows import with_labels
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.statistics.intervals import wilson_interval
from lra.reports.tables.pivot import Pivot
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry

GROUP = "distance"
"""The group of scores by powers of two that this section shows."""
ALL = 0
"""The column `distance` of the rates of all answers."""
COLUMNS = (
    *TASK, "model", "distance", "value", "low", "high", "errors", "answers", "seeds", "status",
    "reason",
)  # fmt: skip
HEADING = "Error rates by distance"


def error_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return error rates on test splits by task, model and distance, and of all distances.

    Answers of all seeds count together. Intervals are Wilson's. Without an error, `value` and both
    ends are 3 / answers, an upper bound with a confidence of 95 %.
    """
    of_groups = (rows["metric"] == "accuracy_by_group") & (rows["split"] == "test")
    measured = with_labels(rows[of_groups & (rows["status"] == "ok")], ("group", "part", "items"))
    measured = measured[(measured["group"] == GROUP) & measured["step"].isna()]
    answers = measured["items"].astype(float)
    wrong = (answers * (1 - measured["value"].astype(float))).round()
    found = measured.assign(answers=answers, errors=wrong, distance=measured["part"].astype(int))
    records: list[dict[str, Any]] = []
    for part in (found, found.assign(distance=ALL)):
        for key, group in part.groupby([*TASK, "name", "distance"], dropna=False):
            errors, count = int(group["errors"].sum()), int(group["answers"].sum())
            interval = wilson_interval(errors / count, count)
            low, high = (interval.low, interval.high) if errors else (3 / count, 3 / count)
            records.append(
                dict(zip((*TASK, "model", "distance"), key, strict=True))
                | {"value": errors / count or 3 / count, "low": low, "high": high}
                | {"errors": errors, "answers": count, "seeds": group["seed"].nunique()}
                | {"status": "ok", "reason": ""}
            )
    return pd.DataFrame(records, columns=list(COLUMNS))


def _lines(data: pd.DataFrame) -> dict[str, int]:
    """Return the distances of a model by their names."""
    distances = sorted({int(distance) for distance in data["distance"]} - {ALL})
    names = {d: f"{d:,}" if d == 1 else f"{d:,}–{2 * d - 1:,}" for d in distances}
    return {"all distances": ALL} | {names[distance]: distance for distance in distances}


def _entry(data: pd.DataFrame, distance: int) -> Entry:
    """Return the error rate of a model with its interval, or its bound if there is no error."""
    found = data[data["distance"] == distance]
    if found.empty:
        return Entry(text="–", status="skipped")
    (line,) = found.to_dict("records")
    facts = {name: int(line[name]) for name in ("errors", "answers", "seeds")}
    if not line["errors"]:
        return Entry(text=f"< 3/{line['answers']:,}", facts={**facts, "high": line["high"]})
    ends = f"[{line['low']:.1e}, {line['high']:.1e}]"
    return Entry(text=f"{line['value']:.1e} {ends}", value=line["value"], facts=facts)


error_table = Pivot(
    title=HEADING,
    caption="Numbers are fractions of wrong answers, over all seeds together, with Wilson's 95 % "
    "interval over answers. Answers of one sequence and of one seed depend on each other, so the "
    "true intervals are wider. Without an error in n answers, the entry is < 3/n, an upper bound "
    "with a confidence of 95 %. Distances are powers of two and the numbers up to the next one.",
    columns=((Column(title="error rate"), _entry),),
    stub="model, by distance",
    lines=_lines,
)


def _make_logarithmic(axes: Axes, data: pd.DataFrame) -> None:
    """Make the vertical axis logarithmic, from half of the lowest rate to 1."""
    axes.set_ylim(float(data["low"].min()) / 2, 1.0)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))


error_figure = LineDrawing(
    title=HEADING, panel=TASK, x="distance", across="distance, from this power of two on",
    along=lambda _: ("error rate", 1.0), guide=_make_logarithmic,
    subtitle=lambda _: "bands: Wilson's intervals; a model without errors is at 3 / answers",
)  # fmt: skip


def error_rates(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table and the figure, if a task has scores by distance."""
    data = error_data(rows)
    if len(data):
        yield TablePart("error-rates", HEADING, error_table(data))
        yield PagesPart(
            "error-rates", HEADING, "error rates on the test split against distance",
            error_figure, panel=TASK, along="distance", data=data[data["distance"] != ALL],
        )  # fmt: skip

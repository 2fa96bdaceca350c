"""Show scores by group, such as the length of a sequence, and the effective length of models.

The effective length is the longest tested length up to which all scores reach a threshold: 85 % of
the mean at the three shortest lengths (Modarressi et al., NoLiMa, arXiv:2502.05167), or an accuracy
of 85.6 % (Hsieh et al., RULER, arXiv:2404.06654).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from lra.reports.figures.lines import LineDrawing
from lra.reports.figures.ticks import length_axis, step_axis
from lra.reports.sections.depth_maps import LENGTH_AND_DEPTH, depth_maps
from lra.reports.sections.section import PagesPart, Part, TablePart
from lra.reports.tables.marks import missing_entry
from lra.reports.tables.pivot import ALL, Pivot
from lra.reports.tables.places import Place, place_words
from lra.reports.tables.scores import BASELINES, TASK
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.records import baseline_of

PLACE = (*TASK, "group")
BASE, SHARE, ABSOLUTE = 3, 0.85, 0.856
"""Lengths of the base score, and the thresholds of both rules."""
MOST = 10
"""Most parts that have a column: the first, the last, and others at equal distances."""


def group_data(rows: pd.DataFrame, runner: str = "train") -> pd.DataFrame:
    """Return the accuracy of each seed by task, group, part and model; `part` is text.

    Baselines of the groups in which a model has a score are among the models.
    """
    tested = rows[rows["runner"].isin([runner, "certify"]) & (rows["split"] == "test")]
    failed = rows[(rows["runner"] == runner) & (rows["status"] != "ok")]
    scored = tested[tested["metric"] == "accuracy_by_group"]
    if scored.empty:
        return scored.assign(group="", part="", model="", baseline="")
    labelled = scored.assign(
        group=[labels["group"] for labels in scored["labels"]],
        part=[labels["part"] for labels in scored["labels"]],
        model=scored["name"],
        baseline=[baseline_of(model) or "" for model in scored["model"]],
    )
    of_models = labelled["baseline"] == ""
    groups = labelled[of_models][[*TASK, "group"]].drop_duplicates()
    labelled = labelled.merge(groups, on=[*TASK, "group"])
    # A model without a score has its reason in each group of its task.
    missing = failed[~failed["name"].isin(labelled["name"])].assign(part=ALL, baseline="")
    return pd.concat([labelled, missing.assign(model=missing["name"]).merge(groups, on=[*TASK])])


def part_order(parts: Sequence[str]) -> list[str]:
    """Return parts in order: numbers by value, and then words."""
    return sorted({*parts} - {ALL}, key=lambda part: (not part.isdigit(), part.zfill(20)))


def effective_length(scores: Mapping[int, float], *, relative: bool) -> tuple[int, bool]:
    """Return the effective length of one model and seed, and whether all lengths reach it.

    Args:
        scores: Accuracy from 0 to 1 by length.
        relative: Whether the threshold is `SHARE` of the score at the `BASE` shortest lengths,
            instead of `ABSOLUTE`.

    Returns:
        The length, 0 if the shortest one is below the threshold.
    """
    lengths = sorted(scores)
    threshold = (
        SHARE * float(np.mean([scores[n] for n in lengths[:BASE]])) if relative else ABSOLUTE
    )
    reached = 0
    for length in lengths:
        if scores[length] < threshold:
            return reached, False
        reached = length
    return reached, True


def _part_entry(data: pd.DataFrame, part: str) -> Entry:
    """Return the mean accuracy of a part over seeds, or the reason without one."""
    return _mean_entry(data, data[(data["part"] == part) & (data["status"] == "ok")])


def _mean_entry(data: pd.DataFrame, here: pd.DataFrame) -> Entry:
    """Return the mean of the rows `here`, or the reason without any, from all rows of a model."""
    if here.empty:
        return missing_entry(data[data["status"] != "ok"], "no sequence of this part")
    values = here["value"].astype(float)
    facts = {"low": values.min(), "high": values.max(), "seeds": here["seed"].nunique()}
    return Entry(text=f"{100 * values.mean():.1f}", value=float(values.mean()), facts=facts)


def _base_entry(data: pd.DataFrame) -> Entry:
    """Return the mean accuracy at the shortest lengths, or the reason without one."""
    base = part_order([*data["part"]])[:BASE]
    return _mean_entry(data, data[data["part"].isin(base) & (data["status"] == "ok")])


def _length_entry(data: pd.DataFrame, *, relative: bool) -> Entry:
    """Return the effective length: the median over seeds, with the lowest and highest."""
    measured = data[data["status"] == "ok"]
    if measured.empty:
        return missing_entry(data[data["status"] != "ok"], "not tested")
    if relative and measured["part"].nunique() < BASE:
        return Entry(text="–", notes=(f"fewer than {BASE} lengths were tested",))
    found = []
    for _, of_seed in measured.groupby("seed", dropna=False):
        parts, values = of_seed["part"].astype(int), of_seed["value"].astype(float)
        found.append(effective_length(dict(zip(parts, values, strict=True)), relative=relative))
    found.sort()
    shortest = min(map(int, measured["part"]))
    texts = [f"{'≥ ' if whole else ''}{n:,}" if n else f"< {shortest:,}" for n, whole in found]
    middle = (len(found) - 1) // 2
    text = texts[middle]
    if texts[0] != texts[-1]:
        text += f" ({texts[0]} to {texts[-1]})"
    return Entry(text=text, value=float(found[middle][0]), facts={"seeds": len(found)})


def _chosen(parts: Sequence[str]) -> list[str]:
    """Return at most `MOST` parts: the first, the last, and some between."""
    ordered = part_order(parts)
    places = np.linspace(0, len(ordered) - 1, min(MOST, len(ordered))).round().astype(int)
    return [ordered[place] for place in places]


def group_pivot(data: pd.DataFrame, group: str) -> Pivot:
    """Return the form of the table of one group, with a column for each part."""
    columns: list[tuple[Column, Callable[[pd.DataFrame], Entry]]] = [
        (Column(title=part), partial(_part_entry, part=part)) for part in _chosen([*data["part"]])
    ]
    caption = "Numbers are percentages of correct answers in test sequences, as means over seeds."
    if group == "length":
        columns += [
            (Column(title="base"), _base_entry),
            (Column(title="effective, 85% of base"), partial(_length_entry, relative=True)),
            (Column(title="effective, 85.6%"), partial(_length_entry, relative=False)),
        ]
        caption += (
            " The effective length is the longest length up to which every tested length has at "
            f"least 85% of the base (the mean at the {BASE} shortest), or an accuracy of at least "
            "85.6%: the lower median over seeds, and in parentheses the lowest and highest. If the "
            "base is near that of a guess, the first of them means nothing."
        )
    return Pivot(title=f"Accuracy by {group}", caption=caption, columns=columns, marks=True)


def group_table(data: pd.DataFrame, group: str) -> Table:
    """Return the table of one group, with baselines below the models."""
    table = group_pivot(data, group)(data)
    named = data[data["baseline"] != ""]
    titles = {
        model: name.replace("_", " ")
        for model, name in zip(named["model"], named["baseline"], strict=True)
    }
    models = [row for row in table.rows if row.title not in titles]
    others = [
        replace(row, title=titles[row.title], section=BASELINES)
        for row in table.rows
        if row.title in titles
    ]
    return replace(table, rows=(*models, *others))


def _panel_words(columns: Sequence[str], place: Place) -> tuple[str, str]:
    """Return the task of a panel, and facts about its data."""
    return place_words(columns, place, untold=["task_version", "group", "length"])


group_figure = LineDrawing(
    title="Accuracy by group", panel=PLACE, x="at", across="length", words=_panel_words,
    along=lambda _: ("accuracy (%)", 100.0),
    subtitle=lambda _: "a point is the accuracy of the test sequences of one part; bands: lowest "
    "to highest seed",
)  # fmt: skip


def score_groups(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table for each group of scores, and a figure where its parts are numbers."""
    data = group_data(rows)
    yield from depth_maps(data[data["baseline"] == ""])
    data = data[data["group"] != LENGTH_AND_DEPTH]
    for group, here in data.groupby("group", sort=False):
        heading = f"Accuracy by {group}"
        yield TablePart(f"accuracy-by-{group}", heading, group_table(here, str(group)))
        here = here[here["baseline"] == ""]  # noqa: PLW2901  # a figure has lines of models alone
        drawn = here[(here["status"] == "ok") & here["part"].str.isdigit()]
        if drawn["part"].nunique() < 2:
            continue
        means = drawn.groupby([*PLACE, "model", "part"], dropna=False, sort=False)["value"]
        points = means.agg(value="mean", low="min", high="max").reset_index()
        scale = length_axis if (drawn["part"].astype(int) > 0).all() else step_axis
        figure = replace(group_figure, across=str(group), title=heading, scale=scale)
        yield PagesPart(
            f"accuracy-by-{group}", heading, f"accuracy of test sequences against {group}",
            figure, panel=PLACE, along="at",
            data=points.assign(at=points["part"].astype(float)).sort_values("at"),
        )  # fmt: skip

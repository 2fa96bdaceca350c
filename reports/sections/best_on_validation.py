"""A sweep over options read as a grid: of each family the setting that is best on validation."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pandas as pd

from lra.reports.names import short_option_words
from lra.reports.rows import model_order
from lra.reports.sections.section import Part, TablePart
from lra.reports.style import current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.places import place_title
from lra.reports.tables.scores import SCORES, TASK, Score, entry, final_scores
from lra.reports.tables.searches import PLACE
from lra.reports.tables.table import Column, Entry, Table

SAME_SEEDS = (
    "options were chosen and scored with the same seeds, so the score is a little too good. A "
    "search (search=grid) trains the chosen options again with other seeds"
)


def best_on_validation(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table for each score of trainings in which a family has several settings."""
    trained = rows[(rows["runner"] == "train") & (rows["baseline"] == "")]
    if trained.empty:
        return
    trained = trained[["tuned" not in labels for labels in trained["labels"]]]
    for score in SCORES.values():
        test, validation = (final_scores(trained, s, score) for s in ("test", "validation"))
        if test is None or validation is None:
            continue
        table = _table(test, validation, score)
        if table is not None:
            name = f"best-on-validation-{score.metric.replace('_', '-')}"
            yield TablePart(name, f"Best on validation: {score.title.lower()}", table)


def _table(test: pd.DataFrame, validation: pd.DataFrame, score: Score) -> Table | None:
    test, validation = (_with_arms(frame) for frame in (test, validation))
    lines = []
    for place, part in validation.groupby([*TASK], dropna=False, sort=True):
        there = test[(test[list(TASK)].astype(str) == [str(v) for v in place]).all(axis=1)]
        by_arm = {arm: _settings(part, there, str(arm), score) for arm in part["arm"].unique()}
        by_arm = {arm: settings for arm, settings in by_arm.items() if settings}
        if any(len(settings) > 1 for settings in by_arm.values()):
            section = place_title(place, *place[len(PLACE) :], data=True)
            lines += [(section, arm, _line(by_arm[arm], score)) for arm in model_order([*by_arm])]
    if not lines:
        return None
    heads = (Column(title="test"), Column(title="validation"),
             Column(title="chosen options", words=True), Column(title="settings"))  # fmt: skip
    return listed_table(
        lines, heads, title=f"Best on validation: {score.title.lower()}",
        caption=f"{score.unit}. For each model, the options with the best mean on the validation "
        f"split, and the test score of the same trainings.",
    )  # fmt: skip


def _with_arms(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the name of the model without the options by which its settings differ."""
    parts = zip(frame["family"], frame["departures"], strict=True)
    return frame.assign(arm=[
        current_style().name(family, {}, [w for w in words if not w.startswith("changed: ")])
        for family, words in parts
    ])  # fmt: skip


def _settings(
    validation: pd.DataFrame, test: pd.DataFrame, arm: str, score: Score
) -> list[tuple[Entry, Entry, dict[str, Any]]]:
    """Return scores on validation and on test of each setting that has both, and its options."""
    found = []
    for name, part in validation[validation["arm"] == arm].groupby("name", sort=True):
        tested = test[(test["name"] == name) & (test["arm"] == arm)]
        judged = entry(part, score)
        if judged.value is not None and not tested.empty:
            found.append((judged, entry(tested, score), dict(part["options"].iloc[0])))
    return found


def _line(settings: list[tuple[Entry, Entry, dict[str, Any]]], score: Score) -> tuple[Entry, ...]:
    pick = max if score.higher else min
    judged, tested, options = pick(settings, key=lambda each: float(each[0].value or 0.0))
    several = len(settings) > 1
    if several:
        tested = replace(tested, notes=(*tested.notes, SAME_SEEDS))
    words = ", ".join(short_option_words(options))
    return (
        tested, replace(judged, notes=()),
        Entry(text=words) if words else absent(), Entry(text=f"{len(settings)}"),
    )  # fmt: skip

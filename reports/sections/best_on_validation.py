"""Show the setting of each family that is best on validation, in a sweep over options."""

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
    "this score is a little too good, because the options were chosen and scored with the same "
    "seeds. A search (search=grid) trains the chosen options again with other seeds"
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
    """Return the table of one score; None if no model has several settings."""
    test, validation = (with_arms(frame) for frame in (test, validation))
    lines = []
    for place, part in validation.groupby([*TASK], dropna=False, sort=True):
        of_place = (test[list(TASK)].astype(str) == [str(v) for v in place]).all(axis=1)
        tests = test[of_place]
        by_arm = {arm: _settings(part, tests, str(arm), score) for arm in part["arm"].unique()}
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
        caption=f"Numbers are {score.unit}. The table chooses for each model the options with the "
        "best mean on the validation split, and shows the test score of the same trainings.",
    )  # fmt: skip


def with_arms(frame: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the column `arm`: the model's name without options and changed settings."""
    parts = zip(frame["family"], frame["departures"], strict=True)
    return frame.assign(arm=[
        current_style().name(family, {}, [w for w in words if not w.startswith("changed: ")])
        for family, words in parts
    ])  # fmt: skip


def _settings(
    validation: pd.DataFrame, test: pd.DataFrame, arm: str, score: Score
) -> list[tuple[Entry, Entry, dict[str, Any]]]:
    """Return (validation score, test score, options) of each setting of an arm that has both."""
    settings = []
    for name, part in validation[validation["arm"] == arm].groupby("name", sort=True):
        test_rows = test[(test["name"] == name) & (test["arm"] == arm)]
        on_validation = entry(part, score)
        if on_validation.value is not None and not test_rows.empty:
            options = dict(part["options"].iloc[0])
            settings.append((on_validation, entry(test_rows, score), options))
    return settings


def _line(settings: list[tuple[Entry, Entry, dict[str, Any]]], score: Score) -> tuple[Entry, ...]:
    """Return the entries of the best setting on validation, and the number of settings."""
    pick = max if score.higher else min
    on_validation, on_test, options = pick(settings, key=lambda s: float(s[0].value or 0.0))
    if len(settings) > 1:
        on_test = replace(on_test, notes=(*on_test.notes, SAME_SEEDS))
    words = ", ".join(short_option_words(options))
    return (
        on_test, replace(on_validation, notes=()),
        Entry(text=words) if words else absent(), Entry(text=f"{len(settings)}"),
    )  # fmt: skip

"""Show scores on the six tasks of MAD, micro and macro, and their mean over all six."""

from collections.abc import Hashable, Iterator, Mapping
from statistics import mean
from typing import Any, NamedTuple

import pandas as pd

from lra.reports.rows import MARKS, model_order, short
from lra.reports.sections.best_on_validation import with_arms
from lra.reports.sections.section import Part, TablePart
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.scores import BASELINES, ORACLES
from lra.reports.tables.table import Column, Entry
from lra.runners.records import is_oracle

TASKS = {
    "mad_compression": "compression", "mad_fuzzy": "fuzzy recall", "mad_recall": "recall",
    "mad_memorisation": "memorisation", "mad_noisy": "noisy recall", "mad_copy": "copying",
}  # fmt: skip
"""The tasks in the order of published tables, and their titles."""
METRICS = {"accuracy": "micro", "macro_accuracy": "macro"}


class SettingScore(NamedTuple):
    """The test score of a model, or baseline, in one setting of a task."""

    value: float
    trials: int
    """Number of trainings with different options among which validation chose."""
    cells: tuple[str, ...]


def mad_table(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table, if there are scores on two or more of the six tasks."""
    # A failed training has a row of accuracy with the reason.
    final = rows[rows["task"].isin(TASKS) & rows["step"].isna() & rows["metric"].isin(METRICS)]
    final = final[final["runner"].isin(("train", "certify"))]
    if final["task"].nunique() < 2:
        return
    records = final.to_dict("records")
    final = with_arms(final).assign(
        setting=[_setting(row) for row in records],
        trial=[_options_of(row, data=False) for row in records],
    )
    is_baseline = final["baseline"] != ""
    final["arm"] = final["arm"].where(~is_baseline, final["baseline"].str.replace("_", " "))
    of_models = final[~is_baseline & (final["runner"] == "train")]
    oracle = final["baseline"].map(is_oracle).astype(bool)
    of_baselines = final[is_baseline & ~oracle]
    lines = [
        (section, arm, _line(part[part["arm"] == arm]))
        for section, part in (("", of_models), (BASELINES, of_baselines), (ORACLES, final[oracle]))
        for arm in model_order([*part["arm"].unique()])
    ]
    heads = [
        Column(group=group, title=title)
        for group in (*TASKS.values(), f"mean of {len(TASKS)}")
        for title in METRICS.values()
    ]
    table = listed_table(
        lines, heads, title="MAD",
        caption="Numbers are test accuracies in percent: micro is over answers, macro is the mean "
        "over the classes that occur. A task's score is the mean over its settings, whose number "
        "is a note; the whole benchmark has 66. If a setting was trained with several options, "
        "validation chooses. The mean is over the tasks, and only if all six have a score. "
        "No model can know the values of keys that training rows lack (ceiling seen keys).",
    )  # fmt: skip
    yield TablePart("mad", "MAD", table)


def _options_of(row: Mapping[Hashable, Any], *, data: bool) -> str:
    """Return the options of a row that decide the setting of its task, or all others."""
    options = sorted(row["options"].items())
    return str([(name, value) for name, value in options if name.startswith("task.") == data])


def _setting(row: Mapping[Hashable, Any]) -> str:
    """Return what distinguishes the setting of a row: its data, and for a baseline its run."""
    run = row["cell"] if row["baseline"] else _options_of(row, data=True)
    return str((row["source"], row["length"], run))


def _line(rows: pd.DataFrame) -> list[Entry]:
    """Return the entries of one model or baseline: for each task and the mean, by metric."""
    by_metric = [
        [_entry(rows[rows["task"] == task], metric) for task in TASKS] for metric in METRICS
    ]
    for entries in by_metric:
        values = [entry.value for entry in entries if entry.value is not None]
        missing = absent(f"{len(values)} of {len(TASKS)} tasks have a score")
        entries.append(_printed(mean(values), ()) if len(values) == len(TASKS) else missing)
    return [entry for pair in zip(*by_metric, strict=True) for entry in pair]


def _entry(rows: pd.DataFrame, metric: str) -> Entry:
    """Return the mean over the settings of a task, from final rows of one model."""
    failed = rows[rows["status"] != "ok"]
    ok = rows[(rows["metric"] == metric) & ~rows["cell"].isin(failed["cell"])]
    scores = [score for _, part in ok.groupby("setting") if (score := _chosen(part)) is not None]
    failures = dict.fromkeys(zip(failed["status"], failed["reason"], strict=True))
    reasons = [f"without {MARKS[status]}: {short(str(reason))}" for status, reason in failures]
    if not scores:
        return absent(*(reasons or ["not run"]))
    notes = [f"{len(scores)} setting{'s' * (len(scores) > 1)}", *reasons]
    if trials := max(score.trials for score in scores) - 1:
        notes.append(f"validation chose among up to {trials + 1} trainings")
    cells = tuple(cell for score in scores for cell in score.cells)
    return _printed(mean(score.value for score in scores), (*notes,), cells)


def _chosen(rows: pd.DataFrame) -> SettingScore | None:
    """Return the test score of the trial with the best mean on validation; None if it has none."""
    by_split = {split: dict([*part.groupby("trial")]) for split, part in rows.groupby("split")}
    tests, validated = by_split.get("test", {}), by_split.get("validation", {})
    if len(tests) > 1:
        tests = {trial: part for trial, part in tests.items() if trial in validated}
    if not tests:
        return None
    best = max(tests, key=lambda t: validated[t]["value"].mean() if len(tests) > 1 else 0.0)
    cells = tuple(dict.fromkeys(map(str, tests[best]["cell"])))
    return SettingScore(float(tests[best]["value"].mean()), len(tests), cells)


def _printed(value: float, notes: tuple[str, ...], cells: tuple[str, ...] = ()) -> Entry:
    return Entry(text=f"{100 * value:.1f}", value=value, notes=notes, cells=cells)

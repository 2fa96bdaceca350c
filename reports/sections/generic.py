"""Make tables for runners without a section: every final metric by model and length."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import pandas as pd

from lra.reports.labels import RUN_MARKS
from lra.reports.rows import FINAL_SETTING, as_text, by_setting, model_order
from lra.reports.sections.section import TablePart
from lra.reports.statistics.intervals import LEVEL, median_interval
from lra.reports.stems import stem
from lra.reports.tables.costs import significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import table_of
from lra.reports.tables.scores import Score, entry
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.metrics import METRICS
from lra.runners.records import canonical

IN_NAMES = frozenset({"variant", "layers", "start", "regime", "tokenizer", *RUN_MARKS})
"""Labels that a model's name or the title of its table already shows."""
REMARKS = frozenset({
    "disturbed", "sentence", "examples", "windows", "weights", "settings", "deviations", "tuned",
    "transferred", "study", "trial", "kernels", "forms",
})  # fmt: skip
"""Labels that do not distinguish rows."""


def generic_tables(rows: pd.DataFrame, metrics: Mapping[str, Sequence[str]]) -> Iterator[TablePart]:
    """Yield a table for each runner and each setting of its rows.

    Args:
        rows: prepared rows of the runners without a section.
        metrics: the metrics that come first in the table, by runner.
    """
    final = rows[rows["step"].isna()]
    for runner, runner_rows in final.groupby("runner", sort=True):
        parts = by_setting(runner_rows, FINAL_SETTING)
        for part in parts:
            file = f"metrics-{stem(str(runner))}{part.suffix}"
            where = f" ({part.title})" if len(parts) > 1 else ""
            first = metrics.get(str(runner), ())
            table = generic_table(part.rows, part.title, first)
            yield TablePart(file, f"Runner {runner}{where}", table)


def generic_table(rows: pd.DataFrame, title: str, first: Sequence[str] = ()) -> Table:
    """Return the table of one runner's final rows in one setting, as means over seeds.

    A section is a mode and a length, a line is a model with the labels in which its rows differ,
    and a column is a metric.

    Args:
        rows: prepared rows.
        title: the setting of the rows in words.
        first: the metrics that come first.
    """
    names = [str(name) for name in rows["metric"].unique()]
    ordered = sorted(names, key=lambda m: (first.index(m) if m in first else len(first), m))
    labels = [
        {k: v for k, v in pairs.items() if k not in IN_NAMES | REMARKS} for pairs in rows["labels"]
    ]
    all_pairs = {pair for pairs in labels for pair in pairs.items()}
    shared = {key: value for key, value in all_pairs if all(p.get(key) == value for p in labels)}
    differing = [{k: v for k, v in pairs.items() if k not in shared} for pairs in labels]
    rows = rows.assign(differing=[canonical(pairs) for pairs in differing])
    words = {canonical(p): "".join(f", {k}={v}" for k, v in sorted(p.items())) for p in differing}
    lines = []
    for (mode, length), part in rows.groupby(["mode", "length"], sort=True, dropna=False):
        for name in model_order([str(n) for n in part["name"]]):
            of_model = part[part["name"] == name]
            for label in sorted(set(of_model["differing"]), key=lambda text: words[text]):
                of_line = of_model[of_model["differing"] == label]
                title_of_line = f"{name}{words[label]}"
                lines.append((f"{mode}, length {as_text(length)}", title_of_line, of_line))
    shared_words = "".join(f", {key}={value}" for key, value in sorted(shared.items()))
    return table_of(
        lines,
        [(Column(title=f"{m} ({METRICS[m].unit})", key=m), partial(_metric_entry, m))
         for m in ordered],
        title=title + shared_words,
        caption=f"Numbers are means over seeds [{100 * LEVEL:g} % t interval over seeds]. A single "
        "seed has no interval, unless its number is a median of passes: the interval is then over "
        "passes.",
    )  # fmt: skip


def _metric_entry(metric: str, rows: pd.DataFrame) -> Entry:
    """Return the mean of a metric over the rows of one line, with its interval."""
    rows = rows[rows["metric"] == metric]
    if rows.empty:
        return absent("the rows of this line have no number of this metric")
    score = entry(rows, Score(metric=metric, title=metric, unit=METRICS[metric].unit))
    if score.value is None:
        return score
    text, interval = significant(score.value), score.interval
    basis = f"{score.facts['seeds']} seeds"
    if interval is None and len(rows) == 1:
        samples = rows["samples"].iloc[0]
        if samples and math.isclose(median(samples), score.value):
            interval, basis = median_interval(samples), f"{len(samples)} passes"
    if interval is not None:
        low, high = significant(interval.low), significant(interval.high)
        text = f"{text} [{low}, {high}; {basis}]"
    return replace(score, text=text, interval=interval)

"""Collect scores of models on the tasks of the Long Range Arena, and their averages."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from lra.reports.arena.rules import (
    AVERAGES,
    BEST_OF_LENGTHS,
    EXACT,
    HARDEST,
    PARAMETERS,
    TASKS,
    AverageRule,
    place,
)
from lra.reports.arena.runs import SHARED, ProtocolRuns
from lra.reports.rows import AMBIGUOUS, DAGGER, MISSING, as_text
from lra.reports.statistics.intervals import Interval, wilson_interval
from lra.reports.style import Spread, current_style
from lra.reports.tables.scores import ACCURACY, CHANCE, entry, final_scores
from lra.reports.tables.table import Entry
from lra.runners.records import Status, baseline_model, is_oracle

AT_CHANCE = "at_chance"
"""Status of a score that is not significantly better than guessing."""
REFUSED = "×"
"""Printed if a model does not support a task."""
MAJORITY = baseline_model("majority")
"""The column `model` of the baseline that always answers the most frequent class."""


@dataclass(frozen=True, slots=True, order=True)
class ArenaColumn:
    """A column of the table: a task in one version, from one source, at one length."""

    task: str
    version: str
    source: str
    marks: str
    length: str
    """The length in tokens; "" if the best of several lengths counts."""

    def __str__(self) -> str:
        """Return the data in words, as in "Text: published, version 1, length 4000"."""
        length = f"length {self.length}" if self.length else "best of lengths"
        parts = [self.source, f"version {self.version}", self.marks, length]
        return f"{TASKS[self.task]}: {', '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLine:
    """A model in the table."""

    name: str
    family: str
    changed: bool
    """Whether options of the protocol were changed; notes of the table list them."""
    start: str
    """Where its first weights come from; "" if they are random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaScores:
    """The scores of models under one protocol and scale."""

    runs: ProtocolRuns
    columns: Sequence[ArenaColumn]
    lines: Sequence[ArenaLine]
    baselines: Sequence[tuple[str, str]]
    """The column `model` and the title of each baseline, the lowest score first."""
    entries: Mapping[tuple[str, ArenaColumn], Entry]
    """The entry of each line or baseline in each column."""
    lengths: Sequence[int]
    """The lengths at which Text was run, because its score is the best over lengths."""

    @property
    def averages(self) -> dict[str, AverageRule]:
        """Return, by name, the rules of averages whose tasks have one column each."""
        tasks = [column.task for column in self.columns]
        return {
            rule.name: rule
            for rule in AVERAGES
            if all(tasks.count(task) == 1 for task in rule.tasks)
        }

    def average(self, name: str, rule: AverageRule) -> Entry:
        """Return the average of a model over the tasks of a rule.

        If a task lacks a score, the entry is a dash with a note instead.
        """
        entries = {column.task: self.entries[name, column] for column in self.columns}
        values = {task: _value_for_average(entries[task], task, rule) for task in rule.tasks}
        missing = [TASKS[task] for task, value in values.items() if value is None]
        if missing:
            note = f"there is no average, because there is no score on {' and '.join(missing)}"
            return Entry(text="–", status=MISSING, notes=(note,))
        mean = sum(value for value in values.values() if value is not None) / len(rule.tasks)
        facts: dict[str, float | int | str] = {"tasks": len(rule.tasks)}
        if any("settings" in entries[task].facts for task in rule.tasks):
            facts["settings"] = SHARED
        return Entry(text=f"{100 * mean:.1f}", value=mean, facts=facts)


def _value_for_average(score: Entry, task: str, rule: AverageRule) -> float | None:
    """Return a score as an average counts it: FAIL on Path-X counts as `rule.failure`."""
    if score.status == AT_CHANCE and task == HARDEST and rule.failure is not None:
        return rule.failure
    return score.value


def arena_scores(runs: ProtocolRuns, frame: pd.DataFrame) -> ArenaScores | None:
    """Return the test scores under one protocol; None without a protocol or a final accuracy.

    `frame` has all prepared rows, which include those of the baselines.
    """
    if not runs.protocol:
        return None
    final = final_scores(runs.rows[runs.rows["task"].isin(list(TASKS))], "test", ACCURACY)
    if final is None:
        return None
    sizes = runs.rows[runs.rows["metric"] == "parameters"].groupby("cell")["value"].median()
    final = final.assign(column=_columns(final), parameters=final["cell"].map(sizes))
    columns = sorted(set(final["column"]), key=lambda c: ([*TASKS].index(c.task), c))
    baselines = _baselines(frame, columns)
    by_name: dict[str, ArenaLine] = {}
    for row in final.to_dict("records"):  # an option may have been changed at one task alone
        line = _arena_line(row)
        changed = line.changed or (line.name in by_name and by_name[line.name].changed)
        by_name[line.name] = replace(line, changed=changed)
    lines = sorted(by_name.values(), key=_sort_key)
    entries: dict[tuple[str, ArenaColumn], Entry] = {}
    for column in columns:
        column_baselines = baselines[baselines["column"] == column]
        for name in baselines["line"].unique():
            entries[str(name), column] = _best_score(
                column_baselines[column_baselines["line"] == name]
            )
        floor = _guessing_score(entries.get((MAJORITY, column)), column.task)
        column_rows = final[final["column"] == column]
        for line in lines:
            score = _best_score(column_rows[column_rows["line"] == line.name])
            score = _mark_if_guessing(score, floor, column.task)
            entries[line.name, column] = _mark_if_larger(score, column_rows)
    lengths = final[final["task"].isin(list(BEST_OF_LENGTHS))]["length"]
    return ArenaScores(
        runs=runs, columns=columns, lines=lines, baselines=_baseline_titles(baselines),
        entries=entries, lengths=sorted({int(n) for n in lengths}),
    )  # fmt: skip


def _columns(rows: pd.DataFrame) -> "pd.Series[Any]":
    """Return the column of the table in which each row belongs."""
    columns = [
        ArenaColumn(
            task=str(row["task"]),
            version=as_text(row["task_version"]),
            source=str(row["source"]),
            marks=", ".join(filter(None, (row["regime"], row["tokenizer"]))),
            length="" if row["task"] in BEST_OF_LENGTHS else as_text(row["length"]),
        )
        for row in rows.to_dict("records")
    ]
    return pd.Series(columns, rows.index, dtype=object)


def _baselines(frame: pd.DataFrame, columns: Sequence[ArenaColumn]) -> pd.DataFrame:
    """Return the final scores of baselines on the data of these columns."""
    baselines = frame[(frame["baseline"] != "") & frame["task"].isin(list(TASKS))]
    scored = final_scores(baselines, "test", ACCURACY)
    final = baselines.iloc[:0] if scored is None else scored
    final = final.assign(column=_columns(final), line=final["model"], parameters=float("nan"))
    return final[final["column"].isin(columns)]


def _baseline_titles(baselines: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the column `model` and the title of each baseline, by score, with oracles last."""
    means = baselines[baselines["status"] == "ok"].groupby("line")["value"].mean()
    titles = dict(zip(baselines["line"], baselines["baseline"], strict=True))
    ordered = sorted(
        titles, key=lambda name: (is_oracle(str(titles[name])), means.get(name, 0.0), name)
    )
    return [(str(name), str(titles[name]).replace("_", " ")) for name in ordered]


def _arena_line(row: Mapping[Hashable, Any]) -> ArenaLine:
    """Return the model that a row of scores belongs to."""
    return ArenaLine(
        name=str(row["line"]),
        family=str(row["family"]),
        changed=bool(row["unlike"]),
        start=str(row["start"]),
    )


def _sort_key(line: ArenaLine) -> tuple[Any, ...]:
    """Return the sort key of a line: the order of the style, then that of the paper."""
    rank = current_style().rank(line.name)
    return (rank, place(line.family), line.changed, line.start, line.name)


def _best_score(rows: pd.DataFrame) -> Entry:
    """Return the score of one model in one column; among several lengths, that of the best."""
    if rows.empty:
        return entry(rows, ACCURACY)
    by_length = {n: rows[rows["length"] == n] for n in sorted({int(n) for n in rows["length"]})}
    scores = {n: _score_at_length(length_rows) for n, length_rows in by_length.items()}
    # A length without a score is the best only if none has one.
    best = max(scores, key=lambda n: -1.0 if (value := scores[n].value) is None else value)
    best_score = scores[best]
    sizes = by_length[best]["parameters"].dropna()
    facts = {**best_score.facts, "length": best}
    facts |= {"parameters": float(sizes.median())} if len(sizes) else {}
    notes = best_score.notes
    if len(scores) > 1:
        lengths = ", ".join(f"{n:,}" for n in scores)
        notes += (
            f"best_of_lengths: the score at length {best:,} is the best of those at {lengths}",
        )
    return replace(best_score, notes=notes, facts=facts)


def _score_at_length(rows: pd.DataFrame) -> Entry:
    """Return the score of one model at one length; the fact `basis` says what it is over."""
    score = entry(rows, ACCURACY)
    changes = sorted(set(rows["unlike"])) if "unlike" in rows else []
    if len(changes) > 1:
        why = f"{len(changes)} models with different changed options share this name: report one "
        return Entry(text="ambiguous", status=AMBIGUOUS, notes=(f"{why}sweep at a time",))
    # Runs of a scale all have changed options; the caption says so.
    if changes[:1] != [""] and changes and not rows["scale"].any():
        score = replace(score, notes=(*score.notes, f"changed: {changes[0]}"))
    if score.status == Status.unsupported:
        return replace(score, text=REFUSED)
    if score.value is None:
        return score
    seeds, failed = int(score.facts["seeds"]), int(score.facts["seeds_failed"])
    basis = f"{seeds} of {seeds + failed} seeds" if failed else f"{seeds} seeds"
    if seeds == 1 and score.facts["examples"]:
        basis = f"{basis if failed else 'one seed'}, {score.facts['examples']:,} examples"
    long = current_style().style.tables.spread is Spread.long
    text = _percent(score.value) + bounds(score.interval) if long else score.text
    facts = {**score.facts, "basis": basis}
    if "shared" in rows and rows["shared"].any():
        note = (
            "this model has the protocol's settings for all models, because its source did not "
            "train it"
        )
        score = replace(score, notes=(*score.notes, note))
        facts["settings"] = SHARED
    return replace(score, text=text, facts=facts)


def _percent(value: float) -> str:
    """Return an accuracy from 0 to 1 as printed, in percent."""
    return f"{ACCURACY.factor * value:.{ACCURACY.digits}f}"


def bounds(interval: Interval | None) -> str:
    """Return an interval in percent, as ` [40.1, 43.2]`, cut at 0 and 100; "" for None."""
    if interval is None:
        return ""
    return f" [{_percent(max(0.0, interval.low))}, {_percent(min(1.0, interval.high))}]"


def _mark_if_larger(score: Entry, rows: pd.DataFrame) -> Entry:
    """Mark a score if its model has far more parameters than exact attention among `rows`."""
    size, length = score.facts.get("parameters"), score.facts.get("length")
    exact = rows[rows["family"].isin(EXACT) & rows["parameters"].notna()]
    exact = exact[exact["length"] == length].sort_values("unlike", kind="stable")
    if size is None or exact.empty:
        return score
    exact_size = float(exact["parameters"].iloc[0])
    ratio = float(size) / exact_size
    facts = {**score.facts, "parameters_ratio": ratio}
    if float(size) <= PARAMETERS * exact_size:
        return replace(score, facts=facts)
    note = (
        f"{DAGGER} parameters_within_10_percent: the model has {float(size):,.0f} parameters, "
        f"{ratio:.2f} times the {exact_size:,.0f} of exact attention"
    )
    return replace(score, text=f"{score.text} {DAGGER}", notes=(*score.notes, note), facts=facts)


def _guessing_score(majority: Entry | None, task: str) -> tuple[float, str]:
    """Return the accuracy of the majority class, or of chance without it, and its name."""
    if majority is None or majority.value is None:
        return CHANCE[task], f"chance, {_percent(CHANCE[task])}"
    return majority.value, f"the majority class, {_percent(majority.value)}"


def _mark_if_guessing(score: Entry, floor: tuple[float, str], task: str) -> Entry:
    """Mark a score with FAIL if it is not significantly above `floor`: a guess and its name.

    On the hardest task, FAIL replaces the score, as in the paper.
    """
    if score.value is None:
        return score
    level, words = floor
    examples = int(score.facts["examples"] or 0)
    # The spread over seeds cannot show whether a model has learnt; test examples can.
    low = wilson_interval(min(score.value, 1.0), examples).low if examples else score.value
    if low > level:
        return score
    if task == HARDEST:
        note = f"FAIL: the score {score.text} is not significantly above {words}"
        return replace(score, text="FAIL", status=AT_CHANCE, notes=(*score.notes, note))
    note = f"FAIL: the score is not significantly above {words}"
    return replace(score, text=f"{score.text} FAIL", status=AT_CHANCE, notes=(*score.notes, note))

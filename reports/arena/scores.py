"""Scores of models at the tasks of the Long Range Arena, and their averages, rule by rule."""

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
"""Printed where a model refuses a task."""
MAJORITY = baseline_model("majority")
"""Model column of the baseline that always answers the commonest class."""


@dataclass(frozen=True, slots=True, order=True)
class ArenaColumn:
    """A task in one version, from one source, at one length; what may share a column."""

    task: str
    version: str
    source: str
    marks: str
    length: str
    """Empty where the best of several lengths counts."""

    def __str__(self) -> str:
        """Say what the data are."""
        length = f"length {self.length}" if self.length else "best of lengths"
        parts = [self.source, f"version {self.version}", self.marks, length]
        return f"{TASKS[self.task]}: {', '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaLine:
    """One model of a table."""

    name: str
    family: str
    changed: bool
    """Whether options were changed of the protocol; the notes say which."""
    start: str
    """What its weights come from; empty where they were drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaScores:
    """What models scored under one protocol in one scale."""

    runs: ProtocolRuns
    columns: Sequence[ArenaColumn]
    lines: Sequence[ArenaLine]
    baselines: Sequence[tuple[str, str]]
    """Model column and title of each, poorest first."""
    entries: Mapping[tuple[str, ArenaColumn], Entry]
    """By name of a line or baseline."""
    lengths: Sequence[int]
    """At which the task ran of which the best length counts."""

    @property
    def averages(self) -> dict[str, AverageRule]:
        """Return the rules, by name, all of whose tasks stand in one column each."""
        tasks = [column.task for column in self.columns]
        return {
            rule.name: rule
            for rule in AVERAGES
            if all(tasks.count(task) == 1 for task in rule.tasks)
        }

    def average(self, name: str, rule: AverageRule) -> Entry:
        """Return the average of a line, or why there is none: never one of fewer tasks."""
        entries = {column.task: self.entries[name, column] for column in self.columns}
        counted = {task: _counted(entries[task], task, rule) for task in rule.tasks}
        lacking = [TASKS[task] for task, value in counted.items() if value is None]
        if lacking:
            note = f"no average: {' and '.join(lacking)} without a number"
            return Entry(text="–", status=MISSING, notes=(note,))
        mean = sum(value for value in counted.values() if value is not None) / len(rule.tasks)
        facts: dict[str, float | int | str] = {"tasks": len(rule.tasks)}
        if any("settings" in entries[task].facts for task in rule.tasks):
            facts["settings"] = SHARED
        return Entry(text=f"{100 * mean:.1f}", value=mean, facts=facts)


def _counted(score: Entry, task: str, rule: AverageRule) -> float | None:
    if score.status == AT_CHANCE and task == HARDEST and rule.failure is not None:
        return rule.failure
    return score.value


def arena_scores(runs: ProtocolRuns, frame: pd.DataFrame) -> ArenaScores | None:
    """Return the test scores of one protocol; None where there is none, or no final accuracy.

    Args:
        runs: rows under the protocol.
        frame: all prepared rows, of which the baselines are taken.
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
    lines = sorted(by_name.values(), key=_order)
    entries: dict[tuple[str, ArenaColumn], Entry] = {}
    for column in columns:
        here = baselines[baselines["column"] == column]
        for name in baselines["line"].unique():
            entries[str(name), column] = _best_of(here[here["line"] == name])
        floor = _floor(entries.get((MAJORITY, column)), column.task)
        column_rows = final[final["column"] == column]
        for line in lines:
            score = _best_of(column_rows[column_rows["line"] == line.name])
            entries[line.name, column] = _sized(_judged(score, floor, column.task), column_rows)
    several = final[final["task"].isin(list(BEST_OF_LENGTHS))]["length"]
    return ArenaScores(
        runs=runs,
        columns=columns,
        lines=lines,
        baselines=_titles(baselines),
        entries=entries,
        lengths=sorted({int(n) for n in several}),
    )


def _columns(rows: pd.DataFrame) -> "pd.Series[Any]":
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
    """Return the final scores of baselines on the data of some columns."""
    baselines = frame[(frame["baseline"] != "") & frame["task"].isin(list(TASKS))]
    scored = final_scores(baselines, "test", ACCURACY)
    final = baselines.iloc[:0] if scored is None else scored
    final = final.assign(column=_columns(final), line=final["model"], parameters=float("nan"))
    return final[final["column"].isin(columns)]


def _titles(baselines: pd.DataFrame) -> list[tuple[str, str]]:
    means = baselines[baselines["status"] == "ok"].groupby("line")["value"].mean()
    titles = dict(zip(baselines["line"], baselines["baseline"], strict=True))
    ordered = sorted(
        titles, key=lambda name: (is_oracle(str(titles[name])), means.get(name, 0.0), name)
    )
    return [(str(name), str(titles[name]).replace("_", " ")) for name in ordered]


def _arena_line(row: Mapping[Hashable, Any]) -> ArenaLine:
    return ArenaLine(
        name=str(row["line"]),
        family=str(row["family"]),
        changed=bool(row["unlike"]),
        start=str(row["start"]),
    )


def _order(line: ArenaLine) -> tuple[Any, ...]:
    return (
        current_style().rank(line.name),
        place(line.family),
        line.changed,
        line.start,
        line.name,
    )


def _best_of(rows: pd.DataFrame) -> Entry:
    """Return the score of one line at one task: the best length's, where it has several."""
    if rows.empty:
        return entry(rows, ACCURACY)
    by_length = {n: rows[rows["length"] == n] for n in sorted({int(n) for n in rows["length"]})}
    scores = {n: _brief(part) for n, part in by_length.items()}
    best = max(scores, key=lambda n: -1.0 if (value := scores[n].value) is None else value)
    winner = scores[best]
    sizes = by_length[best]["parameters"].dropna()
    facts = {**winner.facts, "length": best}
    facts |= {"parameters": float(sizes.median())} if len(sizes) else {}
    notes = winner.notes
    if len(scores) > 1:
        tried = ", ".join(f"{n:,}" for n in scores)
        notes += (f"best_of_lengths: length {best:,} won of {tried}",)
    return replace(winner, notes=notes, facts=facts)


def _brief(rows: pd.DataFrame) -> Entry:
    """Return the score of one model at one length; its interval without what it accounts for."""
    score = entry(rows, ACCURACY)
    changes = sorted(set(rows["unlike"])) if "unlike" in rows else []
    if len(changes) > 1:
        why = f"{len(changes)} sets of changed options share this name: report one sweep at a time"
        return Entry(text="ambiguous", status=AMBIGUOUS, notes=(why,))
    if changes[:1] != [""] and changes and not rows["scale"].any():
        score = replace(score, notes=(*score.notes, f"changed: {changes[0]}"))
    if score.status == Status.unsupported:
        return replace(score, text=REFUSED)
    if score.value is None:
        return score
    seeds, lost = int(score.facts["seeds"]), int(score.facts["seeds_failed"])
    basis = f"{seeds} of {seeds + lost} seeds" if lost else f"{seeds} seeds"
    if seeds == 1 and score.facts["examples"]:
        basis = f"{basis if lost else 'one seed'}, {score.facts['examples']:,} examples"
    long = current_style().style.tables.spread is Spread.long
    text = _percent(score.value) + bounds(score.interval) if long else score.text
    facts = {**score.facts, "basis": basis}
    if "shared" in rows and rows["shared"].any():
        note = "general settings: the protocol's source did not train this model"
        score = replace(score, notes=(*score.notes, note))
        facts["settings"] = SHARED
    return replace(score, text=text, facts=facts)


def _percent(value: float) -> str:
    return f"{ACCURACY.factor * value:.{ACCURACY.digits}f}"


def bounds(interval: Interval | None) -> str:
    """Return an interval as printed: a share lies in [0, 1], though a t interval may not."""
    if interval is None:
        return ""
    return f" [{_percent(max(0.0, interval.low))}, {_percent(min(1.0, interval.high))}]"


def _sized(score: Entry, rows: pd.DataFrame) -> Entry:
    """Mark a score whose model has too many parameters compared with exact attention."""
    size, length = score.facts.get("parameters"), score.facts.get("length")
    exact = rows[rows["family"].isin(EXACT) & rows["parameters"].notna()]
    exact = exact[exact["length"] == length].sort_values("unlike", kind="stable")
    if size is None or exact.empty:
        return score
    usual = float(exact["parameters"].iloc[0])
    facts = {**score.facts, "parameters_ratio": float(size) / usual}
    if float(size) <= PARAMETERS * usual:
        return replace(score, facts=facts)
    note = (
        f"{DAGGER} parameters_within_10_percent: {float(size):,.0f} parameters, "
        f"{float(size) / usual:.2f} times the {usual:,.0f} of exact attention"
    )
    return replace(score, text=f"{score.text} {DAGGER}", notes=(*score.notes, note), facts=facts)


def _floor(majority: Entry | None, task: str) -> tuple[float, str]:
    """Return the accuracy that shows no learning, and what it is."""
    if majority is None or majority.value is None:
        return CHANCE[task], f"chance, {_percent(CHANCE[task])}"
    return majority.value, f"the majority class, {_percent(majority.value)}"


def _judged(score: Entry, floor: tuple[float, str], task: str) -> Entry:
    """Mark a score that is not significantly better than guessing."""
    if score.value is None:
        return score
    level, words = floor
    examples = int(score.facts["examples"] or 0)
    # the spread over seeds is no measure of whether a model has learnt
    low = wilson_interval(min(score.value, 1.0), examples).low if examples else score.value
    if low > level:
        return score
    if task == HARDEST:
        note = f"{score.text}: FAIL, not told from {words}"
        return replace(score, text="FAIL", status=AT_CHANCE, notes=(*score.notes, note))
    note = f"FAIL: not told from {words}"
    return replace(score, text=f"{score.text} FAIL", status=AT_CHANCE, notes=(*score.notes, note))

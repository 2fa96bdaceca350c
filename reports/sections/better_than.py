"""Show which model is better than which: a small matrix over all tasks of a report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pandas as pd

from lra.reports.rows import model_order
from lra.reports.sections.section import Part, TablePart
from lra.reports.statistics.intervals import LEVEL
from lra.reports.statistics.several_tasks import interquartile_interval, interquartile_mean
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.ranking import corrected_p_values
from lra.reports.tables.scores import (
    SCORES,
    TASK,
    Score,
    chance_of,
    entry,
    final_scores,
    several_settings,
    splits,
)
from lra.reports.tables.success import learns
from lra.reports.tables.table import Column, Entry, Table
from lra.runners.records import is_oracle

MODELS = 12
"""The most models that the matrix compares: those that are better in most comparisons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScores:
    """The scores of all models on one task."""

    entries: Mapping[str, Entry]
    seeds: Mapping[str, Sequence[float]]
    """The scores of each model, so that higher is better; a failed run is minus infinity."""
    learned: Mapping[str, int]
    """How many seeds of each model are better than the baselines; empty without baselines."""


def task_scores(rows: pd.DataFrame, split: str, score: Score) -> list[TaskScores]:
    """Return the scores on each task; [] if a family has several settings, as in tables."""
    final = final_scores(rows, split, score)
    if final is None:
        return []
    columns = [tuple(map(str, key)) for key in final[[*TASK]].to_numpy()]
    final = final.assign(column=pd.Series(columns, index=final.index, dtype=object))
    if several_settings(rows, final, score):
        return []
    sign, found = 1 if score.higher else -1, []
    for place, part in final.groupby([*TASK], dropna=False):
        own = part[part["baseline"] == ""]
        others = part[(part["baseline"] != "") & (part["status"] == "ok")]
        floor = [float(v) for v, name in zip(others["value"], others["baseline"], strict=True)
                 if not is_oracle(name)]  # fmt: skip
        floor += chance_of(place) if score.shares else []
        entries, seeds, numbers = {}, {}, {}
        for name, runs in own.groupby("name"):
            entries[str(name)] = made = entry(runs, score)
            values = [*made.by_seed.values()]
            failures = [-math.inf] * int(made.facts.get("seeds_failed", len(runs)))
            seeds[str(name)] = [*(sign * value for value in values), *failures]
            examples = int(made.facts.get("examples") or 0)
            numbers[str(name)] = sum(
                learns(v, examples, floor, higher=score.higher) for v in values
            )
        found.append(TaskScores(entries=entries, seeds=seeds, learned=numbers if floor else {}))
    return found


def better_table(tasks: Sequence[TaskScores], score: Score, split: str) -> Table | None:
    """Return the matrix with its summaries; None if no two models share two seeds of a task."""
    names = model_order([*dict.fromkeys(name for task in tasks for name in task.entries)])
    wins: dict[tuple[str, str], int] = {}
    tested: dict[frozenset[str], int] = {}
    for task in tasks:
        here = [name for name in names if name in task.entries]
        p = corrected_p_values([task.entries[name] for name in here])
        for i, j in combinations(range(len(here)), 2):
            if (i, j) not in p:
                continue
            a, b = here[i], here[j]
            tested[frozenset((a, b))] = tested.get(frozenset((a, b)), 0) + 1
            first, second = (task.entries[name].value or 0.0 for name in (a, b))
            winner = (a, b) if (first > second) == score.higher else (b, a)
            wins[winner] = wins.get(winner, 0) + (p[i, j] < 1 - LEVEL)
    if not tested:
        return None
    balance = {
        n: sum(v * ((a == n) - (b == n)) for (a, b), v in wins.items()) for n in names
    }  # fmt: skip
    shown = sorted(names, key=lambda n: -balance[n])[:MODELS]
    lines = []
    for name in shown:
        line = [_typical(name, tasks, score), _learned(name, tasks)]
        for other in shown:
            count = tested.get(frozenset((name, other)), 0)
            won, lost = wins.get((name, other), 0), wins.get((other, name), 0)
            text = "·" if name == other else f"{won} : {lost} of {count}" if count else "–"
            line.append(Entry(text=text, value=float(won - lost), rank=int(won > lost)))
        lines.append(("", name, line))
    rest = len(names) - len(shown)
    return listed_table(
        lines,
        [Column(title="interquartile mean"), Column(title="learned"),
         *(Column(title=name) for name in shown)],
        title=f"Is the row better than the column? {score.title}, {split} split",
        caption="2 : 1 of 6: of 6 tasks on which both models share two seeds, the row is "
        "significantly better on 2 and the column on 1 (paired t test over seeds, p < "
        f"{1 - LEVEL:.2g} with Holm's correction for all pairs on a task); bold: the row is better "
        "on more tasks. On the others, no difference is shown. Interquartile mean: the mean of the "
        f"middle half of all scores over tasks and seeds [{100 * LEVEL:g} % interval over seeds, "
        "from a bootstrap of the seeds of each task], only for models with all tasks. Learned: "
        "runs that are better than chance and all baselines. A failed run counts as worse than "
        f"all others.{f' {rest} models with fewer wins are omitted.' * bool(rest)}",
    )  # fmt: skip


def _typical(name: str, tasks: Sequence[TaskScores], score: Score) -> Entry:
    """Return the interquartile mean of a model over all tasks."""
    scores = [task.seeds.get(name, ()) for task in tasks]
    if not all(scores):
        return absent("this model lacks a task")
    sign = 1 if score.higher else -1
    value = sign * float(interquartile_mean([v for task in scores for v in task]))
    if not math.isfinite(value):
        return absent("more than a quarter of the runs failed")
    interval = interquartile_interval(scores)
    if interval is None:
        return Entry(text=score.text(value), value=value, notes=("a task has only one seed",))
    low, high = sorted((sign * interval.low, sign * interval.high))
    low, high = (max(0.0, low), min(1.0, high)) if score.shares else (low, high)
    text = f"{score.text(value)} [{score.text(low)}, {score.text(high)}]"
    return Entry(text=text, value=value, facts={"low": low, "high": high})


def _learned(name: str, tasks: Sequence[TaskScores]) -> Entry:
    """Return how many runs of a model learned their task, of those on tasks with baselines."""
    judged = [task for task in tasks if name in task.learned]
    if not judged:
        return absent("the rows have no baselines")
    runs = sum(len(task.seeds[name]) for task in judged)
    count = sum(task.learned[name] for task in judged)
    return Entry(text=f"{count} of {runs}", value=count / runs, facts={"runs": runs})


def better_than(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the matrix of the first score of the first split, if two models can be tested."""
    for split in splits(rows)[:1]:
        for score in SCORES.values():
            if tasks := task_scores(rows, split, score):
                table = better_table(tasks, score, split)
                if table is not None:
                    yield TablePart("better-than", "Which model is better", table)
                return

"""Places: the task and data that numbers share; their names, their rows, and means over seeds."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pandas as pd

from lra.reports.rows import as_text, short
from lra.reports.tables.scores import TASK

Place = tuple[Any, ...]
"""The values of `TASK`, or of other columns with the same first four."""


def by_place(data: pd.DataFrame, columns: Sequence[str] = TASK) -> list[tuple[Place, pd.DataFrame]]:
    """Return places in the order of the rows, each with its rows."""
    return [*data.groupby([*columns], dropna=False, sort=False)]


def place_title(place: Place, *marks: Any, data: bool = False) -> str:
    """Return what a task is called, or an arm's task; `data`: with its source, version, marks."""
    task, version, source, length, *_ = place
    title = f"{task}, length {as_text(length)}"
    facts = [str(source), f"version {as_text(version)}", *filter(None, marks)]
    return f"{title} ({', '.join(facts)})" if data else title


def place_words(
    columns: Sequence[str], place: Place, untold: Collection[str] = ()
) -> tuple[str, str]:
    """Return the task of a place and facts about it, of the columns that are not `untold`."""
    words = {c: value for c, value in zip(columns, place, strict=True) if c not in untold}
    task, facts = str(words.pop("task")), [as_text(words.pop("source"))]
    for name, word in (("task_version", "version"), ("length", "length")):
        if name in words:
            facts.append(f"{word} {as_text(words.pop(name))}")
    return task, ", ".join([*facts, *(str(mark) for mark in words.values() if mark)])


def place_facts(place: Place, columns: Sequence[str] = TASK) -> str:
    """Return a task, and in parentheses source, version, length and marks."""
    task, facts = place_words(columns, place)
    return f"{task} ({facts})"


def summaries(
    rows: pd.DataFrame,
    keys: Sequence[str],
    numbers: Callable[[pd.DataFrame], dict[str, Any]],
    *,
    sort: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield the keys of each group, its name also as `model`, with what `summary` says of it."""
    for key, part in rows.groupby([*keys], sort=sort, dropna=False):
        record = dict(zip(keys, key, strict=True))
        yield {**record, "model": record["name"], **summary(part, numbers)}


def summary(
    rows: pd.DataFrame, numbers: Callable[[pd.DataFrame], dict[str, Any]]
) -> dict[str, Any]:
    """Return `numbers` of the rows that ended well and their seeds, or why there are none."""
    good = rows[rows["status"] == "ok"]
    if good.empty:
        bad = rows.iloc[0] if len(rows) else {"status": "skipped", "reason": "not run"}
        return {"status": str(bad["status"]), "reason": short(str(bad["reason"])), "seeds": 0}
    return {**numbers(good), "seeds": good["seed"].nunique(), "status": "ok", "reason": ""}


def extremes(rows: pd.DataFrame, name: str = "value") -> dict[str, float]:
    """Return the mean of values under a name, and the ends `low` and `high`."""
    values = rows["value"].astype(float)
    return {name: values.mean(), "low": values.min(), "high": values.max()}

"""Group rows by place (the task and data that numbers share), name places, and average seeds."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pandas as pd

from lra.reports.rows import as_text, in_order, short, without_numbers
from lra.reports.tables.scores import TASK

Place = tuple[Any, ...]
"""The values of the columns `TASK`, or of other columns that begin with the same four."""


def by_place(data: pd.DataFrame, columns: Sequence[str] = TASK) -> list[tuple[Place, pd.DataFrame]]:
    """Return each place and its rows, in the order in which places first occur.

    Places that differ only in numbers, such as lengths, are ordered by these.
    """
    found = [*data.groupby([*columns], dropna=False, sort=False)]
    first: dict[tuple[str, ...], int] = {}
    for place, _ in found:
        first.setdefault(without_numbers(place), len(first))
    return sorted(found, key=lambda f: (first[without_numbers(f[0])], in_order(f[0])))


def place_title(place: Place, *marks: Any, data: bool = False) -> str:
    """Return the task and length of a place; if `data`, also its source, version and `marks`."""
    task, version, source, length, *_ = place
    title = f"{task}, length {as_text(length)}"
    facts = [str(source), f"version {as_text(version)}", *filter(None, marks)]
    return f"{title} ({', '.join(facts)})" if data else title


def place_words(
    columns: Sequence[str], place: Place, untold: Collection[str] = ()
) -> tuple[str, str]:
    """Return the task of a place, and the values of its columns except `untold`, in words."""
    words = {c: value for c, value in zip(columns, place, strict=True) if c not in untold}
    task, facts = str(words.pop("task")), [as_text(words.pop("source"))]
    for name, word in (("task_version", "version"), ("length", "length")):
        value = as_text(words.pop(name, None))
        facts += [] if value == as_text(None) else [f"{word} {value}"]
    return task, ", ".join([*facts, *(str(mark) for mark in words.values() if mark)])


def place_facts(place: Place, columns: Sequence[str] = TASK) -> str:
    """Return the task of a place, with its source, version, length and marks in parentheses."""
    task, facts = place_words(columns, place)
    return f"{task} ({facts})"


def summaries(
    rows: pd.DataFrame,
    keys: Sequence[str],
    numbers: Callable[[pd.DataFrame], dict[str, Any]],
    *,
    sort: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield a record for each group of rows: its keys, `model`, and the result of `summary`.

    `keys` are the columns that form groups, one of them `name`; `numbers` returns their numbers.
    """
    for key, group in rows.groupby([*keys], sort=sort, dropna=False):
        record = dict(zip(keys, key, strict=True))
        yield {**record, "model": record["name"], **summary(group, numbers)}


def summary(
    rows: pd.DataFrame, numbers: Callable[[pd.DataFrame], dict[str, Any]]
) -> dict[str, Any]:
    """Return `numbers` of the rows with status ok, or, without any, the reason of a failure."""
    finished = rows[rows["status"] == "ok"]
    if finished.empty:
        failed = rows.iloc[0] if len(rows) else {"status": "skipped", "reason": "not run"}
        reason = short(str(failed["reason"]))
        return {"status": str(failed["status"]), "reason": reason, "seeds": 0}
    seeds = finished["seed"].nunique()
    return {**numbers(finished), "seeds": seeds, "status": "ok", "reason": ""}


def extremes(rows: pd.DataFrame, name: str = "value") -> dict[str, float]:
    """Return the mean of the values under `name`, their minimum `low` and their maximum `high`."""
    values = rows["value"].astype(float)
    return {name: values.mean(), "low": values.min(), "high": values.max()}

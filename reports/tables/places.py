"""Places: the task and data that numbers share; their names, their rows, and means over seeds."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from lra.reports.rows import as_text, short
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column

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


def place_facts(place: Place, *, version: bool = True, length: bool = True) -> str:
    """Return a task, and in parentheses source, version, length and marks."""
    task, numbered, source, tokens, *marks = place
    facts = [str(source)]
    facts += [f"version {as_text(numbered)}"] * version + [f"length {as_text(tokens)}"] * length
    return f"{task} ({', '.join([*facts, *(str(mark) for mark in marks if mark)])})"


def place_columns(
    places: Iterable[Place], titles: Collection[str], *, marks: bool = False
) -> tuple[Column, ...]:
    """Return the columns of a table: the same titles under each task, length and perhaps marks."""
    return tuple(
        Column(
            group=", ".join([place_title(place), *filter(None, place[4:] if marks else ())]),
            title=title, key=f"{place[0]} {title}",
        )
        for place in places
        for title in titles
    )  # fmt: skip


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

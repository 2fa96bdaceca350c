"""Build tables from lines, columns, and functions that make the entry of a line in a column."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pandas as pd

from lra.reports.rows import model_order, with_labels
from lra.reports.tables.places import by_place, extremes, place_title, summaries
from lra.reports.tables.scores import TASK
from lra.reports.tables.table import Column, Entry, Table, TableRow

ALL = "all"
"""The value of a label in rows that lack it."""
T = TypeVar("T")


def table_of(
    lines: Iterable[tuple[str, str, T]],
    columns: Iterable[tuple[Column, Callable[[T], Entry]]],
    *,
    title: str,
    caption: str,
    stub: str = "model",
) -> Table:
    """Return a table whose entries are made by a function of each column.

    Args:
        lines: (section, title, subject) of each line; a subject is any object, such as a name.
        columns: each column, and the function that makes its entry from the subject of a line.
        title: the title of the table.
        caption: sentences that explain the numbers.
        stub: the heading of the first column, which has the titles of lines.
    """
    pairs = [*columns]
    listed = [(section, name, [make(s) for _, make in pairs]) for section, name, s in lines]
    heads = [column for column, _ in pairs]
    return listed_table(listed, heads, title=title, caption=caption, stub=stub)


def listed_table(
    lines: Iterable[tuple[str, str, Iterable[Entry]]],
    columns: Iterable[Column],
    *,
    title: str,
    caption: str,
    stub: str = "model",
    brief: str = "",
) -> Table:
    """Return a table; `lines` are (section, title, entries). See `table_of` for the others."""
    rows = (
        TableRow(title=name, section=section, entries=(*entries,))
        for section, name, entries in lines
    )
    return Table(
        title=title, caption=caption, stub=stub, columns=(*columns,), rows=(*rows,), brief=brief
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMeans:
    """Compute means over seeds and their extremes, for each place, model and value of labels."""

    metrics: Sequence[str]
    labels: Sequence[str]
    """Labels in which numbers of one model differ; a row without a label gets `ALL`."""
    value: str = "value"
    """The name of the column of means."""

    @property
    def columns(self) -> list[str]:
        """The columns of the result; with several metrics, `metric` comes before them."""
        return [*TASK, "model", *self.labels, self.value, "low", "high", "seeds", "status",
                "reason"]  # fmt: skip

    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return a line for each mean; if all runs of a mean failed, it has the reason instead."""
        several = ["metric"] if len(self.metrics) > 1 else []
        measured = with_labels(rows[rows["metric"].isin(self.metrics)], self.labels, ALL)
        keys = (*TASK, "name", *several, *self.labels)
        records = summaries(measured, keys, lambda good: extremes(good, self.value))
        return pd.DataFrame(records, columns=[*several, *self.columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """Make a table from data in tidy form, with a group of columns for each place.

    A model has one line, or several lines below its name.
    """

    title: str
    caption: str
    columns: Sequence[tuple[Column, Callable[..., Entry]]]
    """The columns of each place, with functions that make an entry from the rows of a model and,
    if `lines` is given, from the subject of a line."""
    stub: str = "model"
    lines: Callable[[pd.DataFrame], Mapping[str, Any]] | None = None
    """A function that returns the subjects of a model's lines by title; None for one line."""
    places: Sequence[str] = TASK
    """The columns that form places; if it is empty, all rows are one place."""
    marks: bool = False
    """Whether the name of a place includes regime and tokenizer."""

    def __call__(self, data: pd.DataFrame) -> Table:
        """Return the table of the data."""
        places = by_place(data, self.places) if self.places else [((), data)]
        heads = [
            (self._head(place, column), partial(_entry_of_line, rows, make_entry))
            for place, rows in places
            for column, make_entry in self.columns
        ]
        lines: list[tuple[str, str, tuple[Any, ...]]] = []
        for name in model_order([str(n) for n in data["model"]]):
            if self.lines is None:
                lines.append(("", name, (name,)))
            else:
                subjects = self.lines(data[data["model"] == name])
                lines += [(name, title, (name, subject)) for title, subject in subjects.items()]
        return table_of(lines, heads, title=self.title, caption=self.caption, stub=self.stub)

    def _head(self, place: Sequence[Any], column: Column) -> Column:
        """Return a column with the name of its place as group; `place[4:]` has the marks."""
        if not place:
            return column
        group = ", ".join([place_title((*place,)), *filter(None, place[4:] if self.marks else ())])
        return replace(column, group=group, key=f"{place[0]} {column.key or column.title}")


def _entry_of_line(
    rows: pd.DataFrame, make_entry: Callable[..., Entry], line: tuple[Any, ...]
) -> Entry:
    """Return the entry of a line (model, and subject if any) from the rows of a place."""
    model, *subject = line
    return make_entry(rows[rows["model"] == model], *subject)

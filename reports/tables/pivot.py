"""Tables as data: lines and columns, and functions that say what stands where they meet."""

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
"""Value of a label that a row lacks."""
T = TypeVar("T")


def table_of(
    lines: Iterable[tuple[str, str, T]],
    columns: Iterable[tuple[Column, Callable[[T], Entry]]],
    *,
    title: str,
    caption: str,
    stub: str = "model",
) -> Table:
    """Build a table of lines and columns.

    Args:
        lines: section, title, and what each is about.
        columns: their heads, and what each makes of what a line is about.
        title: of the table, as its caption and stub are.
        caption: how to read the numbers.
        stub: heading of the titles of lines.
    """
    heads = [*columns]
    made = [(section, name, [entry(about) for _, entry in heads]) for section, name, about in lines]
    found = [column for column, _ in heads]
    return listed_table(made, found, title=title, caption=caption, stub=stub)


def listed_table(
    lines: Iterable[tuple[str, str, Iterable[Entry]]],
    columns: Iterable[Column],
    *,
    title: str,
    caption: str,
    stub: str = "model",
    brief: str = "",
) -> Table:
    """Build a table whose lines have their entries: section, title and entries of each."""
    rows = (TableRow(title=n, section=section, entries=(*found,)) for section, n, found in lines)
    return Table(
        title=title, caption=caption, stub=stub, columns=(*columns,), rows=(*rows,), brief=brief
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedMeans:
    """Means over seeds with their extremes: a line for each place, model and value of labels."""

    metrics: Sequence[str]
    labels: Sequence[str]
    """Those that tell numbers of one model apart; `ALL` stands for one that is absent."""
    value: str = "value"
    """Column of the means."""

    @property
    def columns(self) -> list[str]:
        """The columns of the data; with several metrics there is one more, `metric`."""
        return [*TASK, "model", *self.labels, self.value, "low", "high", "seeds", "status",
                "reason"]  # fmt: skip

    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the numbers; what a model does not allow, or a cell that failed, has the reason.

        Args:
            rows: as `lra.reports.rows.prepare` returns them.
        """
        several = ["metric"] if len(self.metrics) > 1 else []
        measured = with_labels(rows[rows["metric"].isin(self.metrics)], self.labels, ALL)
        keys = (*TASK, "name", *several, *self.labels)
        records = summaries(measured, keys, lambda good: extremes(good, self.value))
        return pd.DataFrame(records, columns=[*several, *self.columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pivot:
    """A table of tidy numbers: models by place, or lines below the name of each model."""

    title: str
    caption: str
    columns: Sequence[tuple[Column, Callable[..., Entry]]]
    """Under each place: what stands there, of the rows of a model, and of the line if any."""
    stub: str = "model"
    lines: Callable[[pd.DataFrame], Mapping[str, Any]] | None = None
    """From the rows of a model to its lines by their titles; None: one, named as the model."""
    places: Sequence[str] = TASK
    """Columns of the places; none: all rows stand together."""
    marks: bool = False
    """Whether regime and tokenizer stand in the name of a place."""

    def __call__(self, data: pd.DataFrame) -> Table:
        """Build the table."""
        places = by_place(data, self.places) if self.places else [((), data)]
        heads = [
            (self._under(place, column), partial(_entry, part, entry))
            for place, part in places
            for column, entry in self.columns
        ]
        lines: list[tuple[str, str, tuple[Any, ...]]] = []
        for name in model_order([str(n) for n in data["model"]]):
            if self.lines is None:
                lines.append(("", name, (name,)))
            else:
                found = self.lines(data[data["model"] == name])
                lines += [(name, title, (name, line)) for title, line in found.items()]
        return table_of(lines, heads, title=self.title, caption=self.caption, stub=self.stub)

    def _under(self, place: Sequence[Any], column: Column) -> Column:
        if not place:
            return column
        group = ", ".join([place_title((*place,)), *filter(None, place[4:] if self.marks else ())])
        return replace(column, group=group, key=f"{place[0]} {column.key or column.title}")


def _entry(rows: pd.DataFrame, entry: Callable[..., Entry], line: tuple[Any, ...]) -> Entry:
    """Return what stands in a line, of the rows of a place."""
    return entry(rows[rows["model"] == line[0]], *line[1:])

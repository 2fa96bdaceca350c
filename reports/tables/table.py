"""The data type of all tables, and its forms as Markdown and CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from lra.reports.statistics.intervals import Interval
from lra.reports.style import current_style


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One field of a table: the printed text, and its number."""

    text: str
    value: float | None = None
    interval: Interval | None = None
    status: str = "ok"
    notes: tuple[str, ...] = ()
    """Sentences that become numbered footnotes; equal sentences share a number."""
    rank: int = 0
    """1 for the best number of a column and its ties (bold), 2 for the second (underlined)."""
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    """Further numbers, which only the CSV shows: seeds, examples, batch size and others."""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """The number of each seed, if the value is a mean over seeds."""
    cells: tuple[str, ...] = ()
    """The keys of the runs that gave the value, if they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column; neighbouring columns with the same group share a heading above their titles."""

    title: str
    group: str = ""
    key: str = ""
    """The name of the column in the CSV; "" for the title."""
    words: bool = False
    """Whether it holds words, which are aligned at the left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A line; neighbouring lines with the same section have one heading above them."""

    title: str
    entries: tuple[Entry, ...]
    section: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table. Its footnotes get their numbers in the order of reading when it is written."""

    title: str
    caption: str
    """Sentences that explain the numbers."""
    stub: str
    """The heading of the first column, which has the titles of rows."""
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    brief: str = ""
    """The sentences after the title in a short caption."""

    def __post_init__(self) -> None:
        """Raise ValueError for a row whose number of entries differs from that of columns."""
        for row in self.rows:
            if len(row.entries) != len(self.columns):
                raise ValueError(
                    f"row {row.title!r} has {len(row.entries)} entries, but the table has "
                    f"{len(self.columns)} columns"
                )

    def footnotes(self) -> list[str]:
        """Return the notes in the order of their numbers."""
        return list(dict.fromkeys(n for r in self.rows for e in r.entries for n in e.notes))

    @staticmethod
    def number(entry: Entry) -> tuple[str, str]:
        """Return the number of an entry, which may be bold, and the text after the number."""
        number, blank, rest = entry.text.partition(" ")
        return number, blank + rest

    def numbers(self, entry: Entry) -> list[int]:
        """Return the footnote numbers of one entry."""
        notes = self.footnotes() if entry.notes else []  # most entries of a large table have none
        return [notes.index(note) + 1 for note in entry.notes]


def groups_of(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return the name of each group, and how many neighbouring columns it has."""
    return [(name, len([*same])) for name, same in groupby(columns, key=lambda c: c.group)]


def sections_of(rows: Sequence[TableRow]) -> list[tuple[str, list[TableRow]]]:
    """Return the heading and the rows of each section, in the order of the table."""
    return [(title, [*group]) for title, group in groupby(rows, key=lambda row: row.section)]


# ------------------------------------------------------------------------------ Markdown

_SUPERSCRIPT = str.maketrans("0123456789,", "⁰¹²³⁴⁵⁶⁷⁸⁹˒")


def escape_markdown(text: str) -> str:
    """Return text with backslashes before mark-up of Markdown, except underscores inside words."""
    text = re.sub(r"([\\`*|<>~])|(?<!\S)(#)", r"\\\1\2", text)
    text = re.sub(r"\[(?=\^|[^\]]*\][(:\[])", r"\\[", text)  # links and footnotes, not intervals
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)
    return " ".join(text.split())


def to_markdown(table: Table) -> str:
    """Return a table as Markdown for GitHub: a pipe table for each section, then the footnotes."""

    def cell(entry: Entry) -> str:
        """Return an entry with its rank and the numbers of its footnotes."""
        marks = ",".join(str(n) for n in table.numbers(entry)).translate(_SUPERSCRIPT)
        if not entry.rank:
            return escape_markdown(entry.text) + marks
        number, rest = map(escape_markdown, table.number(entry))
        number = f"**{number}**" if entry.rank == 1 else f"<ins>{number}</ins>"
        return f"{number} {rest}".rstrip() + marks

    # Markdown has no headings over several columns, so each title repeats that of its group.
    titles = [table.stub]
    titles += [f"{c.group} · {c.title}" if c.group else c.title for c in table.columns]
    header = "| " + " | ".join(escape_markdown(t) for t in titles) + " |"
    rule = "| --- |" + "".join(" --- |" if c.words else " ---: |" for c in table.columns)
    lines = [f"**{escape_markdown(table.title)}.** {escape_markdown(table.caption)}".rstrip(), ""]
    for section, rows in sections_of(table.rows):
        if section:
            lines += [f"*{escape_markdown(section)}*", ""]
        lines += [header, rule]
        for row in rows:
            title = escape_markdown(row.title)
            title = f"**{title}**" if current_style().highlighted(row.title) else title
            cells = [title, *map(cell, row.entries)]
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    for number, note in enumerate(table.footnotes(), 1):
        lines.append(f"{str(number).translate(_SUPERSCRIPT)} {escape_markdown(note)}  ")
    return "\n".join(lines).rstrip() + "\n"


# ----------------------------------------------------------------------------------- CSV


def csv_text(value: Any) -> Any:
    """Return a value for a CSV file, with an apostrophe before text that spreadsheets would run.

    A spreadsheet runs text that begins with = + - @ or a control character as a formula. Numbers
    with an interval, such as -0.5 [-0.6, -0.4], are unchanged, because they are harmless.
    """
    if not isinstance(value, str) or not re.match(r"[=+\-@\t\r\n]", value):
        return value
    return value if re.fullmatch(r"[-+0-9.,eE \[\]()%×]*", value) else f"'{value}"


def to_csv(table: Table) -> str:
    """Return a table as CSV for programs: a line for each entry, with numbers at full precision."""
    facts = sorted({name for r in table.rows for e in r.entries for name in e.facts})
    head = ["section", table.stub, "group", "column", "value", "low", "high", "level"]
    head += ["interval_source", "status", "text", "notes", *facts]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        for column, entry in zip(table.columns, row.entries, strict=True):
            i = entry.interval
            bounds = ["", "", "", ""] if i is None else [i.low, i.high, i.level, str(i.source)]
            number = "" if entry.value is None else repr(float(entry.value))
            line: list[Any] = [
                row.section,
                row.title,
                column.group,
                column.key or column.title,
                number,
            ]
            line += [*bounds, entry.status, entry.text, " / ".join(entry.notes)]
            line += [entry.facts.get(name, "") for name in facts]
            writer.writerow(map(csv_text, line))
    return out.getvalue()

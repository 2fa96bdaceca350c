"""One table type, and three of its forms: Markdown, CSV and LaTeX (booktabs)."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lra.reports.statistics.intervals import Interval
from lra.reports.style import current_style


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One field of a table: the printed text, and the number behind it."""

    text: str
    value: float | None = None
    interval: Interval | None = None
    status: str = "ok"
    notes: tuple[str, ...] = ()
    """Sentences; each becomes a numbered footnote, equal sentences share a number."""
    rank: int = 0
    """1: the best of its column, printed in bold; 2: the second, underlined; 0: neither."""
    facts: Mapping[str, float | int | str] = field(default_factory=dict)
    """Further numbers for the CSV alone: seeds, examples, batch size …"""
    by_seed: Mapping[int, float] = field(default_factory=dict)
    """What the value is the mean of."""
    cells: tuple[str, ...] = ()
    """Keys of the cells behind it, where they are recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; neighbours with the same group share a heading above theirs."""

    title: str
    group: str = ""
    key: str = ""
    """The title for programs, in the CSV; the title itself by default."""
    words: bool = False
    """Whether it holds words, which begin at the left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One line; neighbours with the same section stand under one heading."""

    title: str
    entries: tuple[Entry, ...]
    section: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Title, columns, rows, caption. Footnotes are numbered in reading order when rendered."""

    title: str
    caption: str
    """How to read the numbers."""
    stub: str
    """Heading of the first column, which holds the row titles."""
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    brief: str = ""
    """What a short caption says behind the title."""

    def __post_init__(self) -> None:
        """Refuse ragged rows."""
        for row in self.rows:
            if len(row.entries) != len(self.columns):
                raise ValueError(
                    f"row {row.title!r} has {len(row.entries)} entries, the table has "
                    f"{len(self.columns)} columns"
                )

    def footnotes(self) -> list[str]:
        """Return the notes in the order of their numbers."""
        return list(dict.fromkeys(n for r in self.rows for e in r.entries for n in e.notes))

    @staticmethod
    def number(entry: Entry) -> tuple[str, str]:
        """Return the number of an entry, which its rank is shown by, and what follows it."""
        number, blank, rest = entry.text.partition(" ")
        return number, blank + rest

    def numbers(self, entry: Entry) -> list[int]:
        """Return the footnote numbers of one entry."""
        notes = self.footnotes() if entry.notes else []  # most entries of a large table have none
        return [notes.index(note) + 1 for note in entry.notes]


def groups_of(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return (group, width) of neighbouring columns."""
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return groups


def sections_of(rows: Sequence[TableRow]) -> list[tuple[str, list[TableRow]]]:
    """Return (title, rows) of neighbours that stand under one heading."""
    sections: list[tuple[str, list[TableRow]]] = []
    for row in rows:
        if sections and sections[-1][0] == row.section:
            sections[-1][1].append(row)
        else:
            sections.append((row.section, [row]))
    return sections


# ------------------------------------------------------------------------------ Markdown

_SUPERSCRIPT = str.maketrans("0123456789,", "⁰¹²³⁴⁵⁶⁷⁸⁹˒")


def escape_markdown(text: str) -> str:
    """Escape what Markdown would read as mark-up; underscores inside words stay as they are."""
    text = re.sub(r"([\\`*|<>~])|(?<!\S)(#)", r"\\\1\2", text)
    text = re.sub(r"\[(?=\^|[^\]]*\][(:\[])", r"\\[", text)  # links and footnotes, not intervals
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)
    return " ".join(text.split())


def to_markdown(table: Table) -> str:
    """Render for GitHub: a pipe table per section, then the footnotes."""

    def cell(entry: Entry) -> str:
        marks = ",".join(str(n) for n in table.numbers(entry)).translate(_SUPERSCRIPT)
        if not entry.rank:
            return escape_markdown(entry.text) + marks
        number, rest = map(escape_markdown, table.number(entry))
        number = f"**{number}**" if entry.rank == 1 else f"<ins>{number}</ins>"
        return f"{number} {rest}".rstrip() + marks

    # Markdown has no heading over several columns: repeat it
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
    """Return a value as a CSV file holds it; text that a spreadsheet would run gains an apostrophe.

    A formula begins with one of = + - @ or a control character, and needs more than digits to do
    anything; numbers in words, such as -0.5 [-0.6, -0.4], stay.
    """
    if not isinstance(value, str) or not re.match(r"[=+\-@\t\r\n]", value):
        return value
    return value if re.fullmatch(r"[-+0-9.,eE \[\]()%×]*", value) else f"'{value}"


def to_csv(table: Table) -> str:
    """Render one line per entry, at full precision: for programs, not for the eye."""
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
            line = [
                row.section,
                row.title,
                column.group,
                column.key or column.title,
                number,
                *bounds,
            ]
            line += [entry.status, entry.text, " / ".join(entry.notes)]
            line += [entry.facts.get(name, "") for name in facts]
            writer.writerow(map(csv_text, line))
    return out.getvalue()

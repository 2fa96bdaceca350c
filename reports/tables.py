"""One table type, and three of its forms: Markdown, CSV and LaTeX (booktabs)."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reports.latex import breakable, escape_latex, stacked
from reports.statistics import Interval


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
    cells: tuple[str, ...] = ()
    """Keys of the cells behind it, where they are known."""


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
        notes = self.footnotes()
        return [notes.index(note) + 1 for note in entry.notes]


def groups_of(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """Return (group, width) of neighbouring columns."""
    found: list[tuple[str, int]] = []
    for column in columns:
        if found and found[-1][0] == column.group:
            found[-1] = (column.group, found[-1][1] + 1)
        else:
            found.append((column.group, 1))
    return found


def sections_of(rows: Sequence[TableRow]) -> list[tuple[str, list[TableRow]]]:
    """Return (title, rows) of neighbours that stand under one heading."""
    found: list[tuple[str, list[TableRow]]] = []
    for row in rows:
        if found and found[-1][0] == row.section:
            found[-1][1].append(row)
        else:
            found.append((row.section, [row]))
    return found


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
    lines = [f"**{escape_markdown(table.title)}.** {escape_markdown(table.caption)}", ""]
    for section, rows in sections_of(table.rows):
        if section:
            lines += [f"*{escape_markdown(section)}*", ""]
        lines += [header, rule]
        for row in rows:
            cells = [escape_markdown(row.title), *map(cell, row.entries)]
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


# --------------------------------------------------------------------------------- LaTeX

_PAGE = 84
"""Letters that fit across a page, in the size of a table."""
_STUB, _HEAD = 34, 18
"""Letters of the widest first column and of the widest heading that stay in one line."""
_ROWS = 44
"""Lines of a table on one page."""
_GAP = 2.4
"""Letters between columns."""
_FLOATS = 10
"""Parts of a table after which the page is ended: LaTeX holds 18 tables without a place."""


def to_latex(table: Table) -> str:
    """Render `table` environments in the manner of booktabs; needs that package and `array`.

    A table that is wider than a page becomes several, of some columns each; one that is longer, of
    some rows each. The notes stand under the last one.
    """
    wide = _column_parts(table)
    parts = [(columns, rows) for rows in _row_parts(table) for columns in wide]
    lines: list[str] = []
    for number, (columns, rows) in enumerate(parts, 1):
        words = f"{table.title}. {table.caption}" if number == 1 else f"{table.title}."
        if len(parts) > 1:
            words += f" Part {number} of {len(parts)}."
        lines += [r"\begin{table}", r"\centering", rf"\caption{{{breakable(escape_latex(words))}}}"]
        lines += [r"\small", *_tabular(table, columns, rows)]
        if number == len(parts) and table.footnotes():
            lines += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright"]
            for index, note in enumerate(table.footnotes(), 1):
                text = breakable(escape_latex(note))
                lines.append(rf"\textsuperscript{{{index}}} {text}\par")
            lines.append(r"\end{minipage}")
        lines.append(r"\end{table}")
        if number % _FLOATS == 0 and number < len(parts):
            lines.append(r"\clearpage")
    return "\n".join(lines) + "\n"


def _widths(table: Table) -> list[float]:
    """Return about how many letters each column needs."""
    found = []
    for index, column in enumerate(table.columns):
        entries = [row.entries[index] for row in table.rows]
        longest = max((_letters(e.text) + 0.7 * len(e.notes) for e in entries), default=0.0)
        found.append(max(longest, stacked(column.title, _HEAD)[1]) + _GAP)
    return found


def _letters(text: str) -> float:
    """Return how wide a text is, in letters of usual width: capitals and codes are wider."""
    plain = escape_latex(text)
    extra = len(re.findall(r"U\+", plain)) * 5
    return len(text) + extra + 0.35 * sum(letter.isupper() for letter in text)


def _stub_width(table: Table) -> float:
    return min(_STUB, max((_letters(r.title) for r in table.rows), default=0.0)) + _GAP


def _column_parts(table: Table) -> list[list[int]]:
    """Return the columns of each part; neighbours of a group stay together where they fit."""
    widths, room = _widths(table), _PAGE - _stub_width(table)
    groups, at = [], 0
    for _, span in groups_of(table.columns):
        groups.append(list(range(at, at + span)))
        at += span
    parts: list[list[int]] = []
    for group in groups:
        whole = sum(widths[c] for c in group) <= room
        for piece in [group] if whole else [[c] for c in group]:
            own = sum(widths[c] for c in piece)
            if parts and sum(widths[c] for c in parts[-1]) + own <= room:
                parts[-1] += piece
            else:
                parts.append(list(piece))
    return parts


def _row_parts(table: Table) -> list[list[TableRow]]:
    parts: list[list[TableRow]] = [[]]
    for row in table.rows:
        if len(parts[-1]) == _ROWS:
            parts.append([])
        parts[-1].append(row)
    return parts


def _tabular(table: Table, chosen: Sequence[int], rows: Sequence[TableRow]) -> list[str]:
    # a column too wide even for a page of its own breaks its lines
    narrow = [_widths(table)[c] > _PAGE - _stub_width(table) for c in chosen]
    columns = [table.columns[c] for c in chosen]
    forms = ["l" if column.words else "r" for column in columns]
    forms = [r"p{0.5\linewidth}" if n else form for n, form in zip(narrow, forms, strict=True)]
    long = any(_letters(row.title) > _STUB for row in table.rows)
    stub = rf"p{{{0.9 * _STUB / _PAGE:.2f}\linewidth}}" if long else "l"
    width = len(columns) + 1

    def title(row: TableRow) -> str:
        text = escape_latex(row.title)
        return r"\raggedright " + breakable(text) if long else text

    def cell(entry: Entry, *, broken: bool) -> str:
        marks = ",".join(str(n) for n in table.numbers(entry))
        text = escape_latex(entry.text)
        if entry.rank:
            number, rest = map(escape_latex, table.number(entry))
            form = r"\textbf" if entry.rank == 1 else r"\underline"
            text = f"{form}{{{number}}} {rest}".rstrip()
        text = r"\raggedright\arraybackslash " + breakable(text) if broken else text
        return text + (rf"\textsuperscript{{{marks}}}" if marks else "")

    lines = [rf"\begin{{tabular}}{{@{{}}{stub}{''.join(forms)}@{{}}}}", r"\toprule"]
    groups = groups_of(columns)
    if any(name for name, _ in groups):
        heads, rules, at = [""], [], 2
        for name, span in groups:
            head, _ = stacked(name, max(_HEAD, span * 11))
            heads.append(rf"\multicolumn{{{span}}}{{c}}{{{head}}}")
            if name:
                rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
            at += span
        lines += [" & ".join(heads) + r" \\", " ".join(rules)]
    titles = [escape_latex(table.stub), *(stacked(c.title, _HEAD)[0] for c in columns)]
    lines.append(" & ".join(titles) + r" \\")
    for section, own in sections_of(rows):
        lines.append(r"\midrule")
        if section:
            words = rf"\emph{{{breakable(escape_latex(section))}}}"
            form = r"p{0.9\linewidth}" if _letters(section) > 60 else "l"
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}{form}}}{{{words}}} \\")
        for row in own:
            entries = [row.entries[c] for c in chosen]
            cells = [cell(e, broken=n) for e, n in zip(entries, narrow, strict=True)]
            lines.append(" & ".join([title(row), *cells]) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]

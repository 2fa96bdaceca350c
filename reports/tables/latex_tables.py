"""A table as LaTeX in the manner of booktabs: one float that fits, with a caption and a label."""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from lra.reports.style import Captions, TableSpan, TableStyle, current_style
from lra.reports.tables.latex import breakable, escape_latex, prose, stack_heading
from lra.reports.tables.ranking import RANKS
from lra.reports.tables.table import Entry, Table, TableRow, groups_of, sections_of

_Block = tuple[list[int], Sequence[TableRow]]
"""Columns and rows of one `tabular`."""


class _Room(NamedTuple):
    """What fits across a table."""

    environment: str
    size: str
    letters: int
    """Across it, in its size."""
    stub: int
    """Letters of the widest first column that stay in one line."""


_ROOMS = {
    TableSpan.page: _Room("table", r"\small", 84, 34),
    TableSpan.column: _Room("table", r"\footnotesize", 58, 22),
    TableSpan.full: _Room("table*", r"\small", 114, 40),
}
_HEAD = 18
"""Letters of the widest heading that stay in one line."""
_ROWS = 44
"""Lines of a table on one page."""
_HEADING = 3
"""Lines that the heads of a block take, about."""
_GAP = 2.4
"""Letters between columns."""
_FLOATS = 10
"""Parts of a table after which the page is ended: LaTeX holds 18 tables without a place."""


def to_latex(table: Table, style: TableStyle | None = None, label: str = "") -> str:
    """Render one `table` environment; it needs the packages `booktabs` and `array`.

    A table that is wider than a column stands across both; one that is wider still has its columns
    in blocks, one below the other. Only what is longer than a page continues in further floats; the
    notes stand under the last one.

    Args:
        table: with rows and columns.
        style: how; by default as wide as a page.
        label: name behind the style's prefix, by which a text refers to it; further parts of the
            table gain `-2` and so on. Empty: no label.
    """
    style = style or TableStyle()
    widths = _widths(table)
    room = _ROOMS[style.width]
    if style.width is TableSpan.column and _needed(table, room, widths) > room.letters:
        room = _ROOMS[TableSpan.full]
    floats = _floats(table, _column_parts(table, room, widths))
    lines: list[str] = []
    for number, blocks in enumerate(floats, 1):
        lines += [rf"\begin{{{room.environment}}}", r"\centering"]
        lines += _caption(table, style, number, len(floats))
        if label and style.label_prefix:
            further = f"-{number}" if number > 1 else ""
            lines.append(rf"\label{{{style.label_prefix}:{label}{further}}}")
        lines.append(room.size)
        for place, (columns, rows) in enumerate(blocks):
            lines += ["", r"\medskip"] if place else []
            lines += _tabular(table, columns, rows, room, widths, ranked=style.bold_best)
        if number == len(floats) and table.footnotes():
            lines += ["", r"\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright"]
            for index, note in enumerate(table.footnotes(), 1):
                lines.append(rf"\textsuperscript{{{index}}} {prose(note)}\par")
            lines.append(r"\end{minipage}")
        lines.append(rf"\end{{{room.environment}}}")
        if number % _FLOATS == 0 and number < len(floats):
            lines.append(r"\clearpage")
    return "\n".join(lines) + "\n"


def _caption(table: Table, style: TableStyle, number: int, count: int) -> list[str]:
    """Return the caption of one float; the list of tables has the title of the first alone."""
    words = f"{table.title}."
    if number == 1:
        words += f" {table.caption if style.captions is Captions.long else table.brief}".rstrip()
        words = words if style.bold_best else words.replace(RANKS.strip(), "").rstrip()
        if any(current_style().highlighted(row.title) for row in table.rows):
            whose = "ours" if current_style().style.highlight is None else "highlighted"
            words += f" Bold name: {whose}."
    if count > 1:
        words += f" Part {number} of {count}."
    short = f"[{{{escape_latex(table.title)}}}]" if words != f"{table.title}." else ""
    short = short if number == 1 else ""
    return [rf"\caption{short}{{{prose(words)}}}"]


def _widths(table: Table) -> list[float]:
    """Return about how many letters each column needs."""
    widths = []
    for index, column in enumerate(table.columns):
        entries = [row.entries[index] for row in table.rows]
        longest = max((_letters(e.text) + 0.7 * len(e.notes) for e in entries), default=0.0)
        widths.append(max(longest, stack_heading(column.title, _HEAD)[1]) + _GAP)
    return widths


def _letters(text: str) -> float:
    """Return how wide a text is, in letters of usual width: capitals and codes are wider."""
    plain = escape_latex(text)
    extra = len(re.findall(r"U\+", plain)) * 5
    return len(text) + extra + 0.35 * sum(letter.isupper() for letter in text)


def _stub_width(table: Table, room: _Room) -> float:
    return min(room.stub, max((_letters(r.title) for r in table.rows), default=0.0)) + _GAP


def _needed(table: Table, room: _Room, widths: Sequence[float]) -> float:
    """Return about how many letters the whole table needs across."""
    return _stub_width(table, room) + sum(widths)


def _column_parts(table: Table, room: _Room, widths: Sequence[float]) -> list[list[int]]:
    """Return the columns of each part; neighbours of a group stay together where they fit."""
    left = room.letters - _stub_width(table, room)
    groups, at = [], 0
    for _, span in groups_of(table.columns):
        groups.append(list(range(at, at + span)))
        at += span
    parts: list[list[int]] = []
    for group in groups:
        whole = sum(widths[c] for c in group) <= left
        for piece in [group] if whole else [[c] for c in group]:
            width = sum(widths[c] for c in piece)
            if parts and sum(widths[c] for c in parts[-1]) + width <= left:
                parts[-1] += piece
            else:
                parts.append(list(piece))
    return parts


def _floats(table: Table, columns: Sequence[list[int]]) -> list[list[_Block]]:
    """Return the blocks of each float, as many as a page holds."""
    rows = [table.rows[at : at + _ROWS] for at in range(0, len(table.rows), _ROWS)]
    floats: list[list[_Block]] = []
    left = 0
    for block in product(columns, rows):
        lines = len(block[1]) + _HEADING
        if not floats or lines > left:
            floats.append([])
            left = _ROWS + _HEADING
        floats[-1].append(block)
        left -= lines
    return floats


def _tabular(
    table: Table,
    shown: Sequence[int],
    rows: Sequence[TableRow],
    room: _Room,
    widths: Sequence[float],
    *,
    ranked: bool,
) -> list[str]:
    # a column too wide even for a separate page breaks its lines
    left = room.letters - _stub_width(table, room)
    narrow = [widths[c] > left for c in shown]
    columns = [table.columns[c] for c in shown]
    forms = ["l" if column.words else "r" for column in columns]
    forms = [r"p{0.5\linewidth}" if n else form for n, form in zip(narrow, forms, strict=True)]
    long = any(_letters(row.title) > room.stub for row in table.rows)
    stub = rf"p{{{0.9 * room.stub / room.letters:.2f}\linewidth}}" if long else "l"
    width = len(columns) + 1

    def title(row: TableRow) -> str:
        text = escape_latex(row.title)
        text = breakable(text) if long else text
        text = rf"\textbf{{{text}}}" if current_style().highlighted(row.title) else text
        return rf"\raggedright {text}" if long else text

    def cell(entry: Entry, *, broken: bool) -> str:
        marks = ",".join(str(n) for n in table.numbers(entry))
        text = escape_latex(entry.text)
        if entry.rank and ranked:
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
            head, _ = stack_heading(name, max(_HEAD, span * 11))
            heads.append(rf"\multicolumn{{{span}}}{{c}}{{{head}}}")
            if name:
                rules.append(rf"\cmidrule(lr){{{at}-{at + span - 1}}}")
            at += span
        lines += [" & ".join(heads) + r" \\", " ".join(rules)]
    titles = [escape_latex(table.stub), *(stack_heading(c.title, _HEAD)[0] for c in columns)]
    lines.append(" & ".join(titles) + r" \\")
    for section, section_rows in sections_of(rows):
        lines.append(r"\midrule")
        if section:
            words = rf"\emph{{{breakable(escape_latex(section))}}}"
            form = r"p{0.9\linewidth}" if _letters(section) > 0.7 * room.letters else "l"
            lines.append(rf"\multicolumn{{{width}}}{{@{{}}{form}}}{{{words}}} \\")
        for row in section_rows:
            entries = [row.entries[c] for c in shown]
            cells = [cell(e, broken=n) for e, n in zip(entries, narrow, strict=True)]
            lines.append(" & ".join([title(row), *cells]) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]

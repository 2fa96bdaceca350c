"""Write a table as LaTeX in the style of booktabs: floats that fit a page, caption and label."""

import re
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from lra.reports.style import Captions, TableSpan, TableStyle, current_style
from lra.reports.tables.latex import breakable, escape_latex, prose, stack_heading
from lra.reports.tables.ranking import RANKS, TIES
from lra.reports.tables.table import Entry, Table, TableRow, groups_of, sections_of

_Block = tuple[list[int], Sequence[TableRow]]
"""The indices of the columns, and the rows, of one `tabular`."""


class _Room(NamedTuple):
    """A kind of LaTeX table, and how many letters fit into its width."""

    environment: str
    size: str
    letters: int
    """The letters of this size that fit into a line."""
    stub: int
    """The most letters of the first column that are printed in one line."""


_ROOMS = {
    TableSpan.page: _Room("table", r"\small", 84, 34),
    TableSpan.column: _Room("table", r"\footnotesize", 58, 22),
    TableSpan.full: _Room("table*", r"\small", 114, 40),
}
_HEAD = 18
"""The most letters of a heading that is printed in one line."""
_ROWS = 44
"""Lines of a table on one page."""
_HEADING = 3
"""Lines that the headings of a block take, approximately."""
_GAP = 2.4
"""The space between two columns, in letters."""
_FLOATS = 10
"""After so many parts of a table, a page ends, because LaTeX can hold at most 18 waiting tables."""


def to_latex(table: Table, style: TableStyle | None = None, label: str = "") -> str:
    r"""Return a table as LaTeX that needs the packages `booktabs` and `array`.

    A table that is too wide for one column spans both. If it is still too wide, its columns are
    split into blocks, one below the other. A table longer than a page continues in further floats.
    The notes are below the last float.

    Args:
        table: the table.
        style: the look of the table; None is the default style, as wide as a page.
        label: the NAME in `\label{tab:NAME}`; further floats get NAME-2 and so on. "" for none.
    """
    style = style or TableStyle()
    widths = _widths(table)
    room = _ROOMS[style.width]  # the environment, and how many letters fit into a line
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
        for index, (columns, rows) in enumerate(blocks):
            lines += ["", r"\medskip"] if index else []
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
    """Return the caption of float `number` of `count`; the list of tables names only the first."""
    words = f"{table.title}."
    if number == 1:
        words += f" {table.caption if style.captions is Captions.long else table.brief}".rstrip()
        for sentence in () if style.bold_best else (RANKS, TIES):
            words = words.replace(sentence.strip(), "").replace("  ", " ").rstrip()
        if any(current_style().highlighted(row.title) for row in table.rows):
            whose = "ours" if current_style().style.highlight is None else "highlighted"
            words += f" Bold name: {whose}."
    if count > 1:
        words += f" Part {number} of {count}."
    short = f"[{{{escape_latex(table.title)}}}]" if words != f"{table.title}." else ""
    short = short if number == 1 else ""
    return [rf"\caption{short}{{{prose(words)}}}"]


def _widths(table: Table) -> list[float]:
    """Return the approximate width of each column, in letters."""
    widths = []
    for index, column in enumerate(table.columns):
        entries = [row.entries[index] for row in table.rows]
        longest = max((_letters(e.text) + 0.7 * len(e.notes) for e in entries), default=0.0)
        widths.append(max(longest, stack_heading(column.title, _HEAD)[1]) + _GAP)
    return widths


def _letters(text: str) -> float:
    """Return the width of a text in average letters; capitals and codes (U+4E2D) count more."""
    plain = escape_latex(text)
    extra = len(re.findall(r"U\+", plain)) * 5
    return len(text) + extra + 0.35 * sum(letter.isupper() for letter in text)


def _stub_width(table: Table, room: _Room) -> float:
    """Return the approximate width of the first column, in letters."""
    return min(room.stub, max((_letters(r.title) for r in table.rows), default=0.0)) + _GAP


def _needed(table: Table, room: _Room, widths: Sequence[float]) -> float:
    """Return the approximate width of the whole table, in letters."""
    return _stub_width(table, room) + sum(widths)


def _column_parts(table: Table, room: _Room, widths: Sequence[float]) -> list[list[int]]:
    """Return the indices of the columns of each block; groups are split only if they do not fit."""
    available = room.letters - _stub_width(table, room)
    groups, first = [], 0
    for _, span in groups_of(table.columns):
        groups.append(list(range(first, first + span)))
        first += span
    parts: list[list[int]] = []
    for group in groups:
        fits = sum(widths[c] for c in group) <= available
        for piece in [group] if fits else [[c] for c in group]:
            width = sum(widths[c] for c in piece)
            if parts and sum(widths[c] for c in parts[-1]) + width <= available:
                parts[-1] += piece
            else:
                parts.append(list(piece))
    return parts


def _floats(table: Table, columns: Sequence[list[int]]) -> list[list[_Block]]:
    """Return the blocks of each float; a float has as many blocks as fit on a page."""
    row_parts = [table.rows[i : i + _ROWS] for i in range(0, len(table.rows), _ROWS)]
    floats: list[list[_Block]] = []
    lines_left = 0
    for block_columns, block_rows in product(columns, row_parts):
        lines = len(block_rows) + _HEADING
        if not floats or lines > lines_left:
            floats.append([])
            lines_left = _ROWS + _HEADING
        floats[-1].append((block_columns, block_rows))
        lines_left -= lines
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
    """Return the lines of one `tabular`, with the columns `shown` and these rows of a table.

    `widths` are those of all columns; if `ranked`, the best and the second number are marked.
    """
    available = room.letters - _stub_width(table, room)
    # the entries of a column that is too wide for the page are broken into lines
    breaks = [widths[c] > available for c in shown]
    columns = [table.columns[c] for c in shown]
    forms = ["l" if column.words else "r" for column in columns]
    forms = [r"p{0.5\linewidth}" if b else form for b, form in zip(breaks, forms, strict=True)]
    long = any(_letters(row.title) > room.stub for row in table.rows)
    stub = rf"p{{{0.9 * room.stub / room.letters:.2f}\linewidth}}" if long else "l"
    width = len(columns) + 1

    def title(row: TableRow) -> str:
        """Return the title of a row, bold if highlighted; if titles are long, it may break."""
        text = escape_latex(row.title)
        text = breakable(text) if long else text
        text = rf"\textbf{{{text}}}" if current_style().highlighted(row.title) else text
        return rf"\raggedright {text}" if long else text

    def cell(entry: Entry, *, broken: bool) -> str:
        """Return an entry with its rank and footnotes; if `broken`, its lines may break."""
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
        heads, rules, first = [""], [], 2  # LaTeX counts from 1, and the titles are column 1
        for name, span in groups:
            head, _ = stack_heading(name, max(_HEAD, span * 11))
            heads.append(rf"\multicolumn{{{span}}}{{c}}{{{head}}}")
            if name:
                rules.append(rf"\cmidrule(lr){{{first}-{first + span - 1}}}")
            first += span
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
            cells = [cell(entry, broken=b) for entry, b in zip(entries, breaks, strict=True)]
            lines.append(" & ".join([title(row), *cells]) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}"]

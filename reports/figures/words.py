"""Words in figures: sizes, widths, where lines break, and which letters can be drawn."""

import re
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font

from lra.reports.style import current_style

TITLE, SUBTITLE, NAMES, NOTES = 9.5, 7.5, 7.2, 6.8
"""Points, where the style in force says nothing else."""
_HASH, _FILE = re.compile(r"(?<=…) [0-9a-f]{8}\b| [0-9a-f]{8}\b"), re.compile(r"files: [^,()]+ \(")
DARK = "0.15"
"""The colour of text, also next to a coloured mark: most colours of lines are too pale to read."""
_SLACK = 1.03
"""Letters are a little wider at other resolutions."""


def font_size(part: str, usual: float) -> float:
    """Return the size of a part's letters: what the style in force says, or `usual`."""
    size: float | None = getattr(current_style().style.font, part)
    return usual if size is None else size


def wrap(text: str, width: float, size: float, *, bold: bool = False, most: int = 40) -> list[str]:
    """Return `text` in lines of at most `width` inches; of very many the middle is left out.

    Lines break at blanks, else after punctuation, else anywhere.
    """
    lines: list[str] = []
    line = ""
    for piece in _pieces(drawable(text)):
        if not line or width_of(line + piece.rstrip(), size, bold=bold) <= width:
            line += piece
        else:
            lines.append(line.rstrip())
            line = piece
        while width_of(line.rstrip(), size, bold=bold) > width and len(line) > 1:
            fitting = max(1, bisect(range(1, len(line)), width, key=_widths(line, size, bold)))
            lines.append(line[:fitting])
            line = line[fitting:]
    lines += [line.rstrip()] if line.strip() else []
    return lines if len(lines) <= most else [*lines[: most // 2], "…", *lines[-(most // 2) + 1 :]]


def _pieces(text: str) -> list[str]:
    # Neither a comma within a number nor an opening bracket is a place to break after.
    return re.findall(r"(?:[^ ,/=_)\-]|,(?=\d))*(?:[,/=_)\-]+ *| +|$)", text)


def _widths(line: str, size: float, bold: bool) -> Callable[[int], float]:
    return lambda letters: width_of(line[:letters], size, bold=bold)


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return inches, as the sum of the letters' advances: quicker than setting the text."""
    families = tuple(current_style().style.font.family)
    return sum(_advance(letter, bold, families) for letter in text) * size / 72 * _SLACK


@cache
def _advance(letter: str, bold: bool, families: tuple[str, ...]) -> float:
    """Return the width of a letter of one point."""
    for family in families:
        font = get_font(
            findfont(FontProperties(family=family, weight="bold" if bold else "normal"))
        )
        if ord(letter) in _charmap(family):
            break
    font.set_size(100, 72)
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


@cache
def _charmap(family: str) -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=family))).get_charmap())


def _has(letter: str) -> bool:
    return any(ord(letter) in _charmap(family) for family in current_style().style.font.family)


def readable(texts: Sequence[str]) -> list[str]:
    """Return texts without hashes and names of files, if they still differ from each other."""
    plain = [_FILE.sub("files (", _HASH.sub("", text)) for text in texts]
    return plain if len({*plain}) == len({*texts}) else [*texts]


def drawable(text: str) -> str:
    r"""Return `text` in one line; letters that the figures' font lacks are escaped, as in `\u4e2d`.

    Boxes in their place would make different names look the same.
    """
    plain = re.sub(r"[\t\n\v\f\r]+", " ", text).strip(" ")
    return "".join(
        letter if letter.isprintable() and _has(letter) else _escaped(letter) for letter in plain
    )


def _escaped(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 2**16 else f"\\U{ord(letter):08x}"

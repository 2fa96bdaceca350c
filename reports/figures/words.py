"""Measure and break texts in figures, and replace letters that the font lacks."""

import re
from bisect import bisect
from collections.abc import Callable, Sequence
from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font

from lra.reports.style import current_style

TITLE, SUBTITLE, NAMES, NOTES = 9.5, 7.5, 7.2, 6.8
"""Default sizes of letters in points."""
_HASH, _FILE = re.compile(r"(?<=…) [0-9a-f]{8}\b| [0-9a-f]{8}\b"), re.compile(r"files: [^,()]+ \(")
DARK = "0.15"
"""The colour of text. Most colours of lines are too pale for text."""
_SLACK = 1.03
"""A margin for widths, because letters are a little wider at some resolutions."""


def font_size(part: str, usual: float) -> float:
    """Return the size of a part's letters in points: from the style in force, or else `usual`."""
    size: float | None = getattr(current_style().style.font, part)
    return usual if size is None else size


def wrap(text: str, width: float, size: float, *, bold: bool = False, most: int = 40) -> list[str]:
    """Return `text` in lines of at most `width` inches.

    Lines break at blanks, or else after punctuation, or in a word that is too long after "_" or
    anywhere. If there are more than `most` lines, "…" replaces those in the middle.
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
            fitting = line.rfind("_", 0, fitting) + 1 or fitting
            lines.append(line[:fitting])
            line = line[fitting:]
    lines += [line.rstrip()] if line.strip() else []
    return lines if len(lines) <= most else [*lines[: most // 2], "…", *lines[-(most // 2) + 1 :]]


def _pieces(text: str) -> list[str]:
    """Return the parts of a text after which a line may break."""
    # A line never breaks after a comma within a number, or after an opening bracket.
    return re.findall(r"(?:[^ ,/=)\-]|,(?=\d))*(?:[,/=)\-]+ *| +|$)", text)


def _widths(line: str, size: float, bold: bool) -> Callable[[int], float]:
    """Return a function from a number of letters to the width of the line's beginning in inches."""
    return lambda letters: width_of(line[:letters], size, bold=bold)


def width_of(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in inches, by adding up the widths of its letters."""
    families = tuple(current_style().style.font.family)
    return sum(_advance(letter, bold, families) for letter in text) * size / 72 * _SLACK


@cache
def _advance(letter: str, bold: bool, families: tuple[str, ...]) -> float:
    """Return the width of a letter, as a multiple of its size."""
    for family in families:
        font = get_font(
            findfont(FontProperties(family=family, weight="bold" if bold else "normal"))
        )
        if ord(letter) in _charmap(family):
            break
    font.set_size(100, 72)
    # Widths are in units of 2^-16 points, for letters of 100 points.
    return float(font.load_char(ord(letter)).linearHoriAdvance) / 65536 / 100


@cache
def _charmap(family: str) -> frozenset[int]:
    """Return the code points of the letters that a font has."""
    return frozenset(get_font(findfont(FontProperties(family=family))).get_charmap())


def _font_has(letter: str) -> bool:
    """Return whether a font of the style in force has a letter."""
    return any(ord(letter) in _charmap(family) for family in current_style().style.font.family)


def readable(texts: Sequence[str]) -> list[str]:
    """Return texts without hashes and names of files; unchanged if two would become equal."""
    plain = [_FILE.sub("files (", _HASH.sub("", text)) for text in texts]
    return plain if len({*plain}) == len({*texts}) else [*texts]


def drawable(text: str) -> str:
    r"""Return `text` in one line, with codes such as `\u4e2d` for letters that the font lacks.

    Matplotlib would draw the same box for all of these letters.
    """
    plain = re.sub(r"[\t\n\v\f\r]+", " ", text).strip(" ")
    return "".join(
        letter if letter.isprintable() and _font_has(letter) else _letter_code(letter)
        for letter in plain
    )


def _letter_code(letter: str) -> str:
    return f"\\u{ord(letter):04x}" if ord(letter) < 2**16 else f"\\U{ord(letter):08x}"

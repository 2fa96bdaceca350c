"""Numbers of points as titles in an SVG, which a browser shows under the pointer."""

import re
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_MARKER = re.compile(r'(<use [^>]*\bx="([^"]+)" y="([^"]+)"[^>]*)/>')


def title_points(figure: Figure, path: Path) -> None:
    """Give every marker of a drawn line a title: what the line is, and both its numbers.

    Args:
        figure: as it was saved.
        path: its SVG, which is written again.
    """
    titles = _titles(figure)

    def titled(marker: re.Match[str]) -> str:
        lines = titles.get((f"{float(marker[2]):.6f}", f"{float(marker[3]):.6f}"))
        text = escape("\n".join(dict.fromkeys(lines or ())), quote=False)
        return f"{marker[1]}><title>{text}</title></use>" if text else marker[0]

    path.write_text(_MARKER.sub(titled, path.read_text(encoding="utf-8")), encoding="utf-8")


def _titles(figure: Figure) -> dict[tuple[str, str], list[str]]:
    """Return lines of text by place in the SVG, whose unit is a point, from above."""
    found: dict[tuple[str, str], list[str]] = {}
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_transform() is not axes.transData:  # its places are no numbers
                continue
            numbers, label = np.asarray(line.get_xydata(), float), str(line.get_label()).strip()
            name = "" if label.startswith("_") else label  # matplotlib's own, of none
            places = axes.transData.transform(numbers) * 72 / figure.dpi
            for (x, y), (across, up) in zip(numbers, places, strict=True):
                place = (f"{across:.6f}", f"{72 * figure.get_figheight() - up:.6f}")
                texts = (name, _written(axes.xaxis, x), _written(axes.yaxis, y))
                found.setdefault(place, []).extend(filter(None, texts))
    return found


def _written(axis: Axis, number: float) -> str:
    """Return a number in the words of its axis; nothing where the axis has none for it."""
    form = axis.get_major_formatter()
    text = form(number) if isinstance(form, FuncFormatter) else f"{number:.6g}"
    words = [axis.get_label_text(), text] if text else []
    return ": ".join(filter(None, words)).replace("\n", " ")

"""Add the numbers of points to an SVG as titles, which a browser shows under the pointer."""

import re
from html import escape
from pathlib import Path

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

_MARKER = re.compile(r'(<use [^>]*\bx="([^"]+)" y="([^"]+)"[^>]*)/>')


def title_points(figure: Figure, path: Path) -> None:
    """Give every marker of a line a title with the name of the line and both numbers.

    `path` is the SVG file of the saved figure, which is changed.
    """
    titles = _titles(figure)

    def add_title(marker: re.Match[str]) -> str:
        """Return a marker of the SVG with the title of the point at its place, if any."""
        lines = titles.get((f"{float(marker[2]):.6f}", f"{float(marker[3]):.6f}"))
        text = escape("\n".join(dict.fromkeys(lines or ())), quote=False)
        return f"{marker[1]}><title>{text}</title></use>" if text else marker[0]

    path.write_text(_MARKER.sub(add_title, path.read_text(encoding="utf-8")), encoding="utf-8")


def _titles(figure: Figure) -> dict[tuple[str, str], list[str]]:
    """Return the texts of each point, by its place in the SVG: points from the left and the top."""
    texts_by_place: dict[tuple[str, str], list[str]] = {}
    for axes in figure.axes:
        for line in axes.lines:
            if line.get_transform() is not axes.transData:  # its coordinates are not data
                continue
            numbers, label = np.asarray(line.get_xydata(), float), str(line.get_label()).strip()
            name = "" if label.startswith("_") else label  # matplotlib's name of an unnamed line
            places = axes.transData.transform(numbers) * 72 / figure.dpi
            for (x, y), (across, up) in zip(numbers, places, strict=True):
                place = (f"{across:.6f}", f"{72 * figure.get_figheight() - up:.6f}")
                texts = (name, _number_text(axes.xaxis, x), _number_text(axes.yaxis, y))
                texts_by_place.setdefault(place, []).extend(filter(None, texts))
    return texts_by_place


def _number_text(axis: Axis, number: float) -> str:
    """Return the label of the axis and a number in its format; "" if the format gives nothing."""
    form = axis.get_major_formatter()
    text = form(number) if isinstance(form, FuncFormatter) else f"{number:.6g}"
    words = [axis.get_label_text(), text] if text else []
    return ": ".join(filter(None, words)).replace("\n", " ")

"""Markers of a saved figure say their numbers; ticks, and what has no marker, say nothing."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd

from lra.reports.figures.drawing import new_figure, save

SVG = "{http://www.w3.org/2000/svg}"


def titles_of(path: Path) -> list[list[str]]:
    """The lines of every title, in the order of the drawing."""
    found = ElementTree.parse(path).iterfind(f".//{SVG}use/{SVG}title")
    return [str(title.text).split("\n") for title in found]


def test_every_marker_has_its_own_numbers(tmp_path: Path) -> None:
    figure = new_figure()
    left, right = figure.subplots(1, 2)
    left.plot([1, 10, 100], [2.5, np.nan, 0.125], marker="o", label="a<b> & c")
    left.set_xscale("log", base=10)
    left.set_xlabel("length")
    left.plot([2, 20], [1, 2], label="no marker")
    left.plot([0.5], [0.5], marker="x", transform=left.transAxes)
    right.plot(range(8), np.arange(8) / 3, marker="s", markevery=5, label="_hidden")
    right.xaxis.set_major_formatter(lambda number, _: f"{number:.0f} s")
    save(figure, tmp_path, "x", pd.DataFrame())
    assert titles_of(tmp_path / "x.svg") == [
        ["a<b> & c", "length: 1", "2.5"],
        ["a<b> & c", "length: 100", "0.125"],
        ["0 s", "0"],
        ["5 s", "1.66667"],
    ]


def test_points_at_one_place_are_all_named(tmp_path: Path) -> None:
    figure = new_figure()
    axes = figure.subplots()
    for name in ("one", "two"):
        axes.plot([1, 2], [3, 3 + len(name)], marker="o", label=name)
    save(figure, tmp_path, "x", pd.DataFrame())
    assert set(map(tuple, titles_of(tmp_path / "x.svg"))) == {
        ("one", "1", "3", "two"), ("one", "2", "6", "two"),
    }  # fmt: skip


def test_a_figure_without_lines_stays_as_it_was(tmp_path: Path) -> None:
    figure = new_figure()
    figure.subplots()
    save(figure, tmp_path, "x", pd.DataFrame())
    assert "<use" in (tmp_path / "x.svg").read_text()
    assert not re.search("<title", (tmp_path / "x.svg").read_text())

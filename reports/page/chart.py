"""What a chart of the page holds: panels to choose from, each with its axes and points."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lra.reports.rows import PROCESSOR, UNCERTAIN

Number = float | int
MARKED = ("", UNCERTAIN, PROCESSOR)
"""Marks of points, as the page's script numbers them."""
MARKS_ABOUT = (
    "An open circle is a time that other processes made too uncertain; an open diamond is of the "
    "processors' clock, which leaves out waiting."
)
"""What stands below a chart with such points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """One axis: what it says, and how its numbers are written."""

    title: str
    unit: str = ""
    """s, B, %, × or any other, which the title names."""
    scale: str = "linear"
    """linear, log, or symlog, which has a zero."""

    def json(self) -> dict[str, Any]:
        """Return it as the page's script reads it."""
        return {"title": self.title, "unit": self.unit, "scale": self.scale}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """One number of one model, or the reason why there is none."""

    model: str
    x: Number
    y: Number | None = None
    low: Number | None = None
    high: Number | None = None
    text: str = ""
    """What stands behind it: samples, seeds; of an absent one, why."""
    cells: tuple[str, ...] = ()
    mark: str = ""
    """Of a disturbed number: one of `MARKED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPanel:
    """What a chart shows under one choice of its menus."""

    choice: Mapping[str, str]
    """By menu, in the order of menus."""
    x: ChartAxis
    y: ChartAxis
    points: Sequence[ChartPoint]
    rules: Mapping[str, float] = field(default_factory=dict)
    """Lines across, by name: scores of baselines."""
    band: str = ""
    """What low and high are."""
    better: str = ""
    """higher, lower, or empty where neither is better."""

    def json(self, models: Mapping[str, int], cells: Mapping[str, int]) -> dict[str, Any]:
        """Return it as the page's script reads it.

        Args:
            models: position of each model in the page's list.
            cells: position of each cell in the page's list; others are left out.
        """
        return {
            "choice": list(self.choice.values()),
            "x": self.x.json(),
            "y": self.y.json(),
            "band": self.band,
            "better": self.better,
            "rules": [[name, _six_digits(value)] for name, value in self.rules.items()],
            "points": [
                [
                    models[point.model],
                    _six_digits(point.x),
                    _six_digits(point.y),
                    _six_digits(point.low),
                    _six_digits(point.high),
                    point.text,
                    [cells[key] for key in point.cells if key in cells],
                    MARKED.index(point.mark),
                ]
                for point in self.points
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChart:
    """A chart with menus."""

    name: str
    """Identifies it on the page."""
    kind: str
    """Of drawing: lines, dots, scatter or parallel."""
    heading: str
    about: str
    """How to read it."""
    panels: Sequence[ChartPanel]

    @property
    def read_as(self) -> str:
        """Return how to read it, with what the marks of its points are, where it has any."""
        marked = any(point.mark for panel in self.panels for point in panel.points)
        return f"{self.about} {MARKS_ABOUT}" if marked else self.about

    @property
    def menus(self) -> tuple[str, ...]:
        """Return the names of its menus."""
        return tuple(self.panels[0].choice)

    def json(self, models: Mapping[str, int], cells: Mapping[str, int]) -> dict[str, Any]:
        """Return it as the page's script reads it; see `ChartPanel.json`."""
        return {
            "name": self.name,
            "kind": self.kind,
            "menus": list(self.menus),
            "panels": [panel.json(models, cells) for panel in self.panels],
        }


def _six_digits(value: Number | None) -> Number | None:
    """Return six significant digits: more than a pixel or a reader resolves."""
    return None if value is None else float(f"{float(value):.6g}")

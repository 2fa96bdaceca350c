"""Lines of models in panels, as data: what stands on both axes, and what a panel is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.drawing import OTHERS, Look, named_looks
from lra.reports.figures.scaling import draw_crosses, draw_line, strip, why_absent
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.figures.ticks import length_axis
from lra.reports.rows import model_order
from lra.reports.tables.places import Place, by_place, place_words
from lra.reports.tables.scores import score_of


def of_score(data: pd.DataFrame) -> tuple[str, float]:
    """Return what an axis of the score in the column `metric` is called, and its factor."""
    score = score_of(str(data["metric"].iloc[0]))
    return score.axis, score.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDrawing:
    """A figure of lines: one panel for each place, one line for each model.

    Its data have the columns named here, `model`, the ends `low` and `high` of the band around a
    line and, where a number may be absent, `status` and `reason`: a cross stands above the lines
    for it, and a note below says why.
    """

    title: str
    """What is shown, for figures that show no single finding."""
    panel: Sequence[str]
    """Columns whose values share a panel, as far as they are there."""
    x: str
    across: str
    """What `x` is called."""
    y: str = "value"
    along: Callable[[pd.DataFrame], tuple[str, float]] = of_score
    """What `y` of a panel is called, and what it is multiplied by."""
    scale: Callable[[Axes, Sequence[int]], None] = length_axis
    """Sets the horizontal axis, from all its numbers."""
    finding: Callable[[list[pd.DataFrame]], str] = lambda _: ""
    """From the data of each panel to a title; "" where they show no single finding."""
    words: Callable[[Sequence[str], Place], tuple[str, str]] = place_words
    """From columns and values of a panel to its title, and facts behind it."""
    guide: Callable[[Axes, pd.DataFrame], None] = lambda *_: None
    """Draws lines to compare with."""
    subtitle: Callable[[pd.DataFrame], str] = lambda _: ""
    place: str = "length"
    """What notes call a value of `x`."""
    from_zero: bool = False
    """Whether the vertical axis begins at 0."""
    columns: int = 2

    def __call__(self, data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
        """Draw one page."""
        panel = [column for column in self.panel if column in data.columns]
        parts = [(self.words(panel, key), self._placed(p)) for key, p in by_place(data, panel)]
        looks = named_looks(looks, model_order([*map(str, data["model"])]), lines=True)
        return draw_panels(
            parts, partial(self._draw, looks=looks), subtitle=self.subtitle(data),
            title=self.finding([part for _, part in parts]) or self.title,
            plot=(3.0, 2.2), across=self.columns, notes=self._notes(self._placed(data)),
        )  # fmt: skip

    def _placed(self, data: pd.DataFrame) -> pd.DataFrame:
        return data.assign(length=data[self.x], value=data[self.y])

    def _draw(self, axes: Axes, data: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
        along, factor = self.along(data)
        numbers = {"value": "value", "p20": "low", "p80": "high"}
        scaled: dict[str, Any] = {k: factor * data[c].astype(float) for k, c in numbers.items()}
        drawn = data.assign(**scaled)
        names = model_order([str(name) for name in drawn["model"]])
        handles = {
            name: draw_line(axes, drawn[drawn["model"] == name], looks[name], name, exponent=False)
            for name in sorted(names, key=lambda name: looks[name] != OTHERS)
        }
        self.scale(axes, sorted({int(n) for n in drawn["length"]}))
        self._limit(axes, drawn)
        draw_crosses(axes, drawn, looks, names)
        self.guide(axes, drawn)
        axes.set_xlabel(self.across)
        axes.set_ylabel(along)
        return handles

    def _limit(self, axes: Axes, drawn: pd.DataFrame) -> None:
        """Set the vertical axis: above the lines, the strip of crosses has its share of it."""
        values = drawn[["value", "p20", "p80"]].to_numpy(float)
        values = values[np.isfinite(values)]
        if values.size:
            low, high = 0.0 if self.from_zero else float(values.min()), float(values.max())
            room = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
            share, _ = strip(drawn[drawn["value"].isna()]["model"].nunique())
            low -= 0.0 if self.from_zero else room
            axes.set_ylim(low, low + (high + room - low) / (1 - share))

    def _notes(self, data: pd.DataFrame) -> list[str]:
        """Say why numbers are absent; of which task, where there are several."""
        if "status" not in data:
            return []
        parts = [part for _, part in data.groupby("task", sort=False)] if "task" in data else [data]
        notes = []
        for part in parts:
            named = part["model"] + ", " + part["task"] if len(parts) > 1 else part["model"]
            seen = ["model", "length", "status", "reason", *part.columns.intersection(["mark"])]
            once = part.assign(model=named).drop_duplicates(seen)
            notes += why_absent(once, along=self.place, exponent=False)
        return notes

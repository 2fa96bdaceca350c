"""Draw lines of models in panels; a `LineDrawing` describes the axes and the panels."""

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
    """Return the label of an axis of the metric in the data, and the factor of printed numbers."""
    score = score_of(str(data["metric"].iloc[0]))
    return score.axis, score.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class LineDrawing:
    """A figure of lines: a panel for each place, and a line for each model.

    Its data have the columns that the fields name, `model`, and the ends `low` and `high` of bands.
    With the columns `status` and `reason`, failures get a cross above the lines and a note.
    """

    title: str
    """The title if there is no finding."""
    panel: Sequence[str]
    """The columns in which panels differ; missing columns are ignored."""
    x: str
    across: str
    """The label of the horizontal axis, which shows the column `x`."""
    y: str = "value"
    along: Callable[[pd.DataFrame], tuple[str, float]] = of_score
    """A function from the data of a panel to the label of `y` and the factor of its numbers."""
    scale: Callable[[Axes, Sequence[int]], None] = length_axis
    """A function that sets the horizontal axis for these numbers."""
    finding: Callable[[list[pd.DataFrame]], str] = lambda _: ""
    """A function from the data of all panels to a title that states a finding, or ""."""
    words: Callable[[Sequence[str], Place], tuple[str, str]] = place_words
    """A function from the columns and values of a panel to its title and further facts."""
    guide: Callable[[Axes, pd.DataFrame], None] = lambda *_: None
    """A function that draws lines for comparison, such as the training length."""
    subtitle: Callable[[pd.DataFrame], str] = lambda _: ""
    place: str = "length"
    """The word for a value of `x` in notes."""
    from_zero: bool = False
    """Whether the vertical axis begins at 0."""
    columns: int = 2

    def __call__(self, data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
        """Return the figure of one page of data."""
        panel = [column for column in self.panel if column in data.columns]
        # panels may differ in `length`, so it is replaced only after the split into panels
        parts = [(self.words(panel, key), self._with_axes(p)) for key, p in by_place(data, panel)]
        looks = named_looks(looks, model_order([*map(str, data["model"])]), lines=True)
        return draw_panels(
            parts, partial(self._draw, looks=looks), subtitle=self.subtitle(data),
            title=self.finding([part for _, part in parts]) or self.title,
            plot=(3.0, 2.2), across=self.columns, notes=self._notes(self._with_axes(data)),
        )  # fmt: skip

    def _with_axes(self, data: pd.DataFrame) -> pd.DataFrame:
        """Return data with the columns of both axes under the names that `draw_line` reads."""
        return data.assign(length=data[self.x], value=data[self.y])

    def _draw(self, axes: Axes, data: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
        """Draw one panel; return the handle of each model."""
        along, factor = self.along(data)
        columns = {"value": "value", "p20": "low", "p80": "high"}
        scaled: dict[str, Any] = {k: factor * data[c].astype(float) for k, c in columns.items()}
        drawn = data.assign(**scaled)
        names = model_order([str(name) for name in drawn["model"]])
        handles = {
            name: draw_line(axes, drawn[drawn["model"] == name], looks[name], name, exponent=False)
            # grey models first, so that they are behind the others
            for name in sorted(names, key=lambda name: looks[name] != OTHERS)
        }
        self.scale(axes, sorted({int(n) for n in drawn["length"]}))
        self._limit_axis(axes, drawn)
        draw_crosses(axes, drawn, looks, names)
        self.guide(axes, drawn)
        axes.set_xlabel(self.across)
        axes.set_ylabel(along)
        return handles

    def _limit_axis(self, axes: Axes, drawn: pd.DataFrame) -> None:
        """Set the limits of the vertical axis, with room for crosses above the lines."""
        values = drawn[["value", "p20", "p80"]].to_numpy(float)
        values = values[np.isfinite(values)]
        if values.size:
            low, high = 0.0 if self.from_zero else float(values.min()), float(values.max())
            # Equal values get a margin of 5 % of themselves.
            margin = 0.06 * (high - low) or 0.05 * max(abs(high), 1.0)
            share, _ = strip(drawn[drawn["value"].isna()]["model"].nunique())
            low -= 0.0 if self.from_zero else margin
            axes.set_ylim(low, low + (high + margin - low) / (1 - share))

    def _notes(self, data: pd.DataFrame) -> list[str]:
        """Return notes about failures; they name the task if there are several."""
        if "status" not in data:
            return []
        parts = [part for _, part in data.groupby("task", sort=False)] if "task" in data else [data]
        notes = []
        for part in parts:
            names = part["model"] + ", " + part["task"] if len(parts) > 1 else part["model"]
            columns = ["model", "length", "status", "reason", *part.columns.intersection(["mark"])]
            unique = part.assign(model=names).drop_duplicates(columns)
            notes += why_absent(unique, along=self.place, exponent=False)
        return notes

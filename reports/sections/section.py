"""The types of a section of a report: tables and figures as data.

A section is a function that takes the rows of a report and yields parts. These rows always come
from `lra.reports.rows.prepare`. A section writes no file: the report splits figures into pages,
names files, saves them, and lists missing parts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from lra.reports.figures.drawing import Look
from lra.reports.figures.layout import chunks
from lra.reports.rows import model_order
from lra.reports.tables.table import Table

LINES, PANELS = 12, 12
"""The most lines, and the most panels, of one figure."""
Looks = dict[str, Look]
"""Colour, marker and dashes of each model, by its name."""
Groups = Mapping[str, Sequence[str]]
"""Names of models, by the kind of their family."""


class TablePart(NamedTuple):
    """A table of a report."""

    name: str
    """The name of its files, without endings."""
    heading: str
    table: Table


class PagesPart(NamedTuple):
    """A figure that may have several pages."""

    name: str
    """The name of the files of the first page, without endings."""
    heading: str
    text: str
    """A phrase that says what the figure shows."""
    draw: Callable[[pd.DataFrame, Looks], Figure]
    """A function that draws one page from its data."""
    panel: Sequence[str] = ()
    """The columns in which panels differ."""
    along: str = ""
    """The column of the horizontal axis, if lines join the points; otherwise ""."""
    panels: int = PANELS
    """The most panels of a page."""
    lines: int | None = LINES
    """The most models of a page; None for any number."""
    number: str = "value"
    """The column of numbers; a page without a number is skipped."""
    absent: bool = True
    """Whether pages include rows without a number, for marks and notes."""
    data: pd.DataFrame = pd.DataFrame()
    """The data of all pages, with the columns `status` and `reason`."""


class LinesPart(NamedTuple):
    """A figure of costs against length: one plot for few models, panels by kind for many."""

    name: str
    heading: str
    text: str
    data: pd.DataFrame
    """Data from `lra.reports.figures.scaling.scaling_data`."""
    draw: Callable[[pd.DataFrame, Looks, Groups], list[tuple[pd.DataFrame, Figure]]]
    """A function that returns the data and the figure of each page."""


class LeftOut(NamedTuple):
    """A part that is missing from the report, and why."""

    name: str
    reason: str


Part = TablePart | PagesPart | LinesPart | LeftOut
SectionOf = Callable[[pd.DataFrame], Iterable[Part]]
"""A function from all rows of a report to the parts of a section."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """A section with a table and a figure of the same data; without data, it has no parts."""

    name: str
    """The name of the table's files, without endings."""
    heading: str
    data: Callable[[pd.DataFrame], pd.DataFrame]
    """A function from rows to the data, with the columns `status` and `reason`."""
    table: Callable[[pd.DataFrame], Table | None] | None = None
    figure: PagesPart | None = None
    """The figure, without its data."""

    def __call__(self, rows: pd.DataFrame) -> Iterator[Part]:
        """Yield the table and the figure."""
        data = self.data(rows)
        if data.empty:
            return
        table = self.table(data) if self.table else None
        if table is not None:
            yield TablePart(self.name, self.heading, table)
        if self.figure is not None:
            yield self.figure._replace(data=data)


def alike(draw: Callable[[pd.DataFrame], Figure]) -> Callable[[pd.DataFrame, Looks], Figure]:
    """Return `draw` with a second argument that it ignores: the looks of models.

    It is for figures whose colours do not stand for models.
    """
    return lambda data, _: draw(data)


def split_off_lone(
    data: pd.DataFrame, panel: Sequence[str], along: str, number: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the data of panels with lines, and the data of panels with single points.

    A panel has single points if all its rows, also those without a number, have one value in the
    column `along`.

    Args:
        data: the data of a figure.
        panel: the columns in which panels differ; missing columns are ignored.
        along: the column of the horizontal axis.
        number: the column of the vertical axis.
    """
    keys = [data[column] for column in panel if column in data.columns]
    keys = keys or [pd.Series(0, index=data.index)]
    places = data[along].groupby(keys, dropna=False).transform("nunique")
    single = data[number].notna().groupby(keys, dropna=False).transform("any") & (places == 1)
    return data[~single], data[single]


def pages(
    data: pd.DataFrame, panel: Sequence[str], panels: int = PANELS, lines: int | None = LINES
) -> list[pd.DataFrame]:
    """Return the data of each page, so that a page has few panels and few lines.

    Args:
        data: the data of a figure, with a column `model`.
        panel: the columns in which panels differ.
        panels: the most panels of a page.
        lines: the most models of a page; None for any number.
    """
    columns = [column for column in panel if column in data.columns]
    tuples = list(zip(*(data[c] for c in columns), strict=True)) if columns else [()] * len(data)
    keys = pd.Series(tuples, index=data.index, dtype=object)
    groups = chunks(list(dict.fromkeys(keys)), panels)
    if lines is None:
        return [data[keys.isin(p)] for p in groups]
    models = chunks(model_order([str(name) for name in data["model"]]), lines)
    parts = (data[keys.isin(p) & data["model"].isin(m)] for p in groups for m in models)
    return [part for part in parts if len(part)]


def page_names(stem: str, heading: str, count: int) -> list[tuple[str, str]]:
    """Return the file name and the heading of each page; a single page has no number."""
    if count == 1:
        return [(stem, heading)]
    return [
        (stem if n == 1 else f"{stem}-{n}", f"{heading} ({n} of {count})")
        for n in range(1, count + 1)
    ]


def pages_of(part: PagesPart) -> list[pd.DataFrame]:
    """Return the data of each page of a figure; pages without a number are skipped."""
    if part.data.empty:
        return []
    data = part.data if part.absent else part.data[part.data[part.number].notna()]
    all_pages = pages(data, part.panel, part.panels, part.lines)
    return [page for page in all_pages if page[part.number].notna().any()]

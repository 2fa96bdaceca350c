"""What a section hands to the report: tables and figures as data.

A section is a function from the rows of a report to its parts. Wherever sections take `rows`, they
are as `lra.reports.rows.prepare` returns them. It draws on demand and writes nothing: pages, names
of files, saving and what is left out are the report's.
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
"""Of one figure."""
Looks = dict[str, Look]
"""By the name of a model."""
Groups = Mapping[str, Sequence[str]]
"""Names of models by the kind of their family."""


class TablePart(NamedTuple):
    """One table."""

    name: str
    """Of its files, without their endings."""
    heading: str
    table: Table


class PagesPart(NamedTuple):
    """A figure, on as many pages as its panels and lines need."""

    name: str
    """Of the first page's files, without their endings."""
    heading: str
    text: str
    """What it shows, in the words of the page."""
    draw: Callable[[pd.DataFrame, Looks], Figure]
    """Draws one page."""
    panel: Sequence[str] = ()
    """Columns whose values share a panel."""
    along: str = ""
    """The column of the horizontal axis, along which lines join their points; "" where none do."""
    panels: int = PANELS
    """Of one page, at most."""
    lines: int | None = LINES
    """Models of one page, at most; None: as many as its panels have."""
    number: str = "value"
    """A column of which every page shows at least one number."""
    absent: bool = True
    """Whether lines without a number stand on a page, for its marks and notes."""
    data: pd.DataFrame = pd.DataFrame()
    """What all pages show, with status and reason of each number."""


class LinesPart(NamedTuple):
    """Costs of models against length: few in one plot, many in panels by their kind."""

    name: str
    heading: str
    text: str
    data: pd.DataFrame
    """As `lra.reports.figures.scaling.scaling_data` returns them."""
    draw: Callable[[pd.DataFrame, Looks, Groups], list[tuple[pd.DataFrame, Figure]]]
    """Returns the pages and their figures."""


class LeftOut(NamedTuple):
    """What the rows do not allow."""

    name: str
    reason: str


Part = TablePart | PagesPart | LinesPart | LeftOut
SectionOf = Callable[[pd.DataFrame], Iterable[Part]]
"""From all rows to the parts of a section."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """A section of one table and one figure of the same numbers; with no numbers there is none."""

    name: str
    """Of the table's files, without their endings."""
    heading: str
    data: Callable[[pd.DataFrame], pd.DataFrame]
    """From the rows of a report to numbers, with status and reason of each."""
    table: Callable[[pd.DataFrame], Table | None] | None = None
    figure: PagesPart | None = None
    """Without its data."""

    def __call__(self, rows: pd.DataFrame) -> Iterator[Part]:
        """Yield table and figure."""
        data = self.data(rows)
        if data.empty:
            return
        table = self.table(data) if self.table else None
        if table is not None:
            yield TablePart(self.name, self.heading, table)
        if self.figure is not None:
            yield self.figure._replace(data=data)


def alike(draw: Callable[[pd.DataFrame], Figure]) -> Callable[[pd.DataFrame, Looks], Figure]:
    """Return a drawing for which all models look alike: its colours tell something else."""
    return lambda data, _: draw(data)


def split_off_lone(
    data: pd.DataFrame, panel: Sequence[str], along: str, number: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split data into panels with something to join, and those whose numbers are at one place.

    What has no number has a place, too: it is marked there.

    Args:
        data: of a figure.
        panel: columns whose values share a panel, as far as they are there.
        along: the column of the horizontal axis.
        number: the column of what is drawn.
    """
    keys = [data[column] for column in panel if column in data.columns]
    keys = keys or [pd.Series(0, index=data.index)]
    places = data[along].groupby(keys, dropna=False).transform("nunique")
    alone = data[number].notna().groupby(keys, dropna=False).transform("any") & (places == 1)
    return data[~alone], data[alone]


def pages(
    data: pd.DataFrame, panel: Sequence[str], panels: int = PANELS, lines: int | None = LINES
) -> list[pd.DataFrame]:
    """Return the data in parts that one figure each can hold: of few panels and few lines.

    Args:
        data: with a column `model`.
        panel: columns whose values share a panel.
        panels: of one page.
        lines: models of one page; None: any number.
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
    """Return stem and heading of each page of a figure; one page alone needs no number."""
    if count == 1:
        return [(stem, heading)]
    return [
        (stem if n == 1 else f"{stem}-{n}", f"{heading} ({n} of {count})")
        for n in range(1, count + 1)
    ]


def pages_of(part: PagesPart) -> list[pd.DataFrame]:
    """Return what each page of a figure shows."""
    if part.data.empty:
        return []
    data = part.data if part.absent else part.data[part.data[part.number].notna()]
    every = pages(data, part.panel, part.panels, part.lines)
    return [page for page in every if page[part.number].notna().any()]

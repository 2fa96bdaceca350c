"""Write every table and figure that the rows allow, and a page that shows them."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lra.reports.figures.captions import Caption
from lra.reports.figures.drawing import Look, ReportFigure, looks, save, save_numbers
from lra.reports.figures.processes import parallel_drawing
from lra.reports.install import ForeignFile, install
from lra.reports.page.configurations import CellAccount
from lra.reports.page.document import ReportSection, write_documents
from lra.reports.rows import names_by_group, prepare
from lra.reports.sections import arena, costs, losses, scores
from lra.reports.sections.generic import generic_tables
from lra.reports.sections.section import (
    LeftOut,
    LinesPart,
    PagesPart,
    Part,
    SectionOf,
    TablePart,
    page_names,
    pages_of,
    split_off_lone,
)
from lra.reports.stems import fit_stem
from lra.reports.style import DEFAULT, Captions, ReportStyle, current_style, using
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.table import Table, to_csv, to_markdown

EVERY: tuple[SectionOf, ...] = (scores.section, costs.section, losses.section)
"""Sections that rows of any runner may have, after that of protocols."""
NONE: Mapping[str, Any] = MappingProxyType({})
_LARGE = 20_000
"""Rows of a report whose figures are drawn in parallel."""
TABLE_FORMS = ("csv", "tex", "caption.txt")
FIGURE_FORMS = (
    "pdf", "svg", "png", "csv", "caption.txt", "caption.tex", "legend.pdf", "legend.svg",
    "legend.png",
)  # fmt: skip
"""Endings of the files of tables and figures, as far as the style has them written."""


@dataclass(slots=True)
class _Draft:
    """The report while it is written, in a temporary folder."""

    folder: Path
    looks: dict[str, Look]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of models by the kind of their family."""
    contents: list[tuple[str, str, Table | str]] = field(default_factory=list)
    """Heading and name of the files of each part, with a table, or the text of a figure."""
    left_out: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    """Files of numbers that are no figure: each of their lines would be a point."""

    def table(self, file: str, table: Table, heading: str) -> None:
        """Write one table in its three forms and show it."""
        file = fit_stem(file)
        (self.folder / f"{file}.md").write_text(to_markdown(table), encoding="utf-8")
        (self.folder / f"{file}.csv").write_text(to_csv(table), encoding="utf-8")
        form = current_style().style.tables
        (self.folder / f"{file}.tex").write_text(to_latex(table, form, file), encoding="utf-8")
        if form.captions is Captions.short and table.caption:
            caption = self.folder / f"{file}.caption.txt"
            caption.write_text(f"{table.caption}\n", encoding="utf-8")
        self.contents.append((heading, file, table))

    def figures(
        self, part: PagesPart | LinesPart, drawn: Iterable[tuple[pd.DataFrame, Figure]], count: int
    ) -> None:
        """Save the pages of a figure, `count` of them, and show them."""
        if not count and len(part.data):
            self.left_out.append(f"{part.name}: no number among its points, only reasons")
        names = page_names(part.name, part.heading, count)
        for (page, figure), (file, heading) in zip(drawn, names, strict=True):
            save(figure, self.folder, file, page)
            finding = figure.finding if isinstance(figure, ReportFigure) else ""
            words = Caption(title=finding, subtitle=part.text).sentences()
            self.contents.append((heading, fit_stem(file), " ".join(words)))

    def show(self, parts: Iterable[Part]) -> None:
        """Write and show what a section has."""
        for part in parts:
            match part:
                case TablePart():
                    self.table(part.name, part.table, part.heading)
                case LeftOut():
                    self.left_out.append(f"{part.name}: {part.reason}")
                case LinesPart():
                    lines = part._replace(data=self._joined(part, (), "length", "value"))
                    empty = lines.data["value"].isna().all()
                    drawn = [] if empty else part.draw(lines.data, self.looks, self.groups)
                    self.figures(lines, drawn, len(drawn))
                case PagesPart():
                    data = self._joined(part, part.panel, part.along, part.number)
                    pages = pages_of(whole := part._replace(data=data))
                    each = ((page, part.draw(page, self.looks)) for page in pages)
                    self.figures(whole, each, len(pages))

    def _joined(
        self, part: PagesPart | LinesPart, panel: Sequence[str], along: str, number: str
    ) -> pd.DataFrame:
        """Return what is to be drawn, and write the numbers of panels of single points."""
        if not along or part.data.empty:
            return part.data
        drawn, points = split_off_lone(part.data, panel, along, number)
        if len(points):
            self.points.append(save_numbers(self.folder, f"{part.name}-points", points).name)
        return drawn

    def sections(self) -> list[ReportSection]:
        """Return what was written, once all files are there."""
        return [
            ReportSection(
                heading=heading, file=file, table=content, forms=self._forms(file, TABLE_FORMS)
            )
            if isinstance(content, Table)
            else ReportSection(
                heading=heading, file=file, text=content, forms=self._forms(file, FIGURE_FORMS)
            )
            for heading, file, content in self.contents
        ]

    def _forms(self, file: str, endings: Sequence[str]) -> tuple[str, ...]:
        return tuple(form for form in endings if (self.folder / f"{file}.{form}").exists())


def write_report(
    rows: pd.DataFrame,
    folder: Path,
    *,
    title: str,
    sections: Mapping[str, SectionOf | str] = NONE,
    groups: Mapping[str, Sequence[str]] = NONE,
    left_out: Sequence[str] = (),
    metrics: Mapping[str, Sequence[str]] = NONE,
    deviations: Mapping[str, Mapping[str, str]] = NONE,
    cells: Mapping[str, CellAccount] = NONE,
    style: ReportStyle = DEFAULT,
) -> list[Path]:
    """Write tables, figures, report.md and report.html; return their paths, the page first.

    Everything is written to a temporary folder and moved when complete. Files of an earlier report
    go; files that no report wrote stay. The same rows give the same bytes.

    Args:
        rows: as `lra.runners.store.read_rows` returns them.
        folder: created where it does not exist.
        title: heading of the page.
        sections: by runner, what shows its rows, or why it is not to be had; those rows and those
            of other runners are a table of their metrics.
        groups: families by kind, for figures of more models than one plot can hold.
        left_out: what is not among the rows, and why.
        metrics: by runner, the metrics that come first in its table, of a runner without a section.
        deviations: by cell, sentences by name: what is not as in the source of its protocol.
        cells: by key, configuration, command and environment, which the page shows.
        style: how figures and tables look, and which models they show.

    Raises:
        NoRows: there are no rows.
        ValueError: columns are missing.
        ForeignFile: a file that no report wrote stands in the way.
        StyleError: the style fits none of the rows, or gives two models one name.
    """
    title = title.encode(errors="replace").decode()  # bytes of a command line that are no text
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ForeignFile(f"{folder} is a file; wanted a folder, which is made where it is missing")
    folder.mkdir(parents=True, exist_ok=True)
    with using(style), tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as temporary:
        frame, draft = _drafted(
            rows, Path(temporary), sections=sections, groups=groups, metrics=metrics,
            deviations=deviations,
        )  # fmt: skip
        write_documents(
            draft.folder, frame, draft.sections(), title=title,
            left_out=[*left_out, *draft.left_out], cells=cells,
        )  # fmt: skip
        names = sorted(path.name for path in draft.folder.iterdir())
        install(draft.folder, folder, names)
    first = ["report.md", "report.html"]
    return [folder / name for name in first + [n for n in names if n not in first]]


def write_parts(
    rows: pd.DataFrame,
    folder: Path,
    *,
    sections: Mapping[str, SectionOf | str] = NONE,
    groups: Mapping[str, Sequence[str]] = NONE,
    deviations: Mapping[str, Mapping[str, str]] = NONE,
    style: ReportStyle = DEFAULT,
) -> None:
    """Write tables and figures alone into a new folder; see `write_report`."""
    folder.mkdir(parents=True)
    with using(style):
        _drafted(rows, folder, sections=sections, groups=groups, deviations=deviations)


def _drafted(
    rows: pd.DataFrame,
    folder: Path,
    *,
    sections: Mapping[str, SectionOf | str],
    groups: Mapping[str, Sequence[str]],
    deviations: Mapping[str, Mapping[str, str]],
    metrics: Mapping[str, Sequence[str]] = NONE,
) -> tuple[pd.DataFrame, _Draft]:
    """Write tables and figures in the style in force; return them with the rows, prepared."""
    frame, hidden = current_style().select(prepare(rows))
    models = [str(n) for n in frame["name"][frame["baseline"] == ""].unique()]
    by_kind = names_by_group(frame, groups)
    draft = _Draft(folder, looks(models), by_kind, left_out=hidden)
    runners = set(frame["runner"])
    here = {runner: section for runner, section in sections.items() if runner in runners}
    ready = {runner: section for runner, section in here.items() if not isinstance(section, str)}
    protocols = partial(arena.section, kinds=groups, sentences=deviations)
    every: list[SectionOf] = [protocols, *EVERY, *ready.values()]
    with parallel_drawing(enabled=len(frame) >= _LARGE):
        for section in dict.fromkeys(every):
            draft.show(section(frame))
    if draft.points:
        files = ", ".join(draft.points)
        draft.left_out.append(f"figures whose lines would be single points: numbers in {files}")
    draft.show(LeftOut(f"section of {r}", why) for r, why in here.items() if isinstance(why, str))
    draft.show(generic_tables(frame[~frame["runner"].isin([*ready])], metrics))
    return frame, draft

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
from lra.reports.sections import arena, costs, losses, published_figures, scores
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

EVERY: tuple[SectionOf, ...] = (
    published_figures.section, scores.section, costs.section, losses.section,
)  # fmt: skip
"""Sections that rows of any runner may have. They follow the section about protocols."""
NONE: Mapping[str, Any] = MappingProxyType({})
_LARGE = 20_000
"""A report with at least this many rows draws its figures in parallel processes."""
TABLE_FORMS = ("csv", "tex", "caption.txt")
FIGURE_FORMS = (
    "pdf", "svg", "png", "csv", "caption.txt", "caption.tex", "legend.pdf", "legend.svg",
    "legend.png",
)  # fmt: skip
"""Endings of the files of tables and figures. The style decides which of them are written."""


@dataclass(slots=True)
class _Draft:
    """The report while it is written to a temporary folder."""

    folder: Path
    looks: dict[str, Look]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of models, by the kind of their family."""
    contents: list[tuple[str, str, Table | str]] = field(default_factory=list)
    """Heading, file name without ending, and the table or the text of the figure, of each part."""
    left_out: list[str] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    """Files with the numbers of panels that are not drawn: each line would be a single point."""

    def table(self, file: str, table: Table, heading: str) -> None:
        """Write a table as Markdown, CSV and LaTeX, and add it to the contents of the report."""
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
        """Save the `count` pages of a figure, and add them to the contents of the report."""
        if not count and len(part.data):
            self.left_out.append(f"{part.name}: every measurement failed, so nothing can be drawn")
        names = page_names(part.name, part.heading, count)
        for (page, figure), (file, heading) in zip(drawn, names, strict=True):
            save(figure, self.folder, file, page)
            finding = figure.finding if isinstance(figure, ReportFigure) else ""
            words = Caption(title=finding, subtitle=part.text).sentences()
            self.contents.append((heading, fit_stem(file), " ".join(words)))

    def show(self, parts: Iterable[Part]) -> None:
        """Write the tables and figures of a section, and add them to the contents."""
        for part in parts:
            match part:
                case TablePart():
                    self.table(part.name, part.table, part.heading)
                case LeftOut():
                    self.left_out.append(f"{part.name}: {part.reason}")
                case LinesPart():
                    lines = part._replace(data=self._drawn_data(part, (), "length", "value"))
                    empty = lines.data["value"].isna().all()
                    drawn = [] if empty else part.draw(lines.data, self.looks, self.groups)
                    self.figures(lines, drawn, len(drawn))
                case PagesPart():
                    data = self._drawn_data(part, part.panel, part.along, part.number)
                    pages = pages_of(figure_part := part._replace(data=data))
                    figures = ((page, part.draw(page, self.looks)) for page in pages)
                    self.figures(figure_part, figures, len(pages))

    def _drawn_data(
        self, part: PagesPart | LinesPart, panel: Sequence[str], along: str, number: str
    ) -> pd.DataFrame:
        """Return the data to draw; write the numbers of panels with single points to a file.

        Args:
            part: a figure.
            panel: the columns in which panels differ.
            along: the column on the horizontal axis; "" if the figure has no lines.
            number: the column on the vertical axis.
        """
        if not along or part.data.empty:
            return part.data
        drawn, points = split_off_lone(part.data, panel, along, number)
        if len(points):
            self.points.append(save_numbers(self.folder, f"{part.name}-points", points).name)
        return drawn

    def sections(self) -> list[ReportSection]:
        """Return the sections of the page. Call it after all files are written."""
        return [
            ReportSection(
                heading=heading,
                file=file,
                table=content,
                forms=self._existing_forms(file, TABLE_FORMS),
            )
            if isinstance(content, Table)
            else ReportSection(
                heading=heading,
                file=file,
                text=content,
                forms=self._existing_forms(file, FIGURE_FORMS),
            )
            for heading, file, content in self.contents
        ]

    def _existing_forms(self, file: str, endings: Sequence[str]) -> tuple[str, ...]:
        """Return those of `endings` with which a file was written."""
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
    """Write tables, figures, report.md and report.html; return their paths, the pages first.

    All files are written to a temporary folder and moved when they are complete. Files of an
    earlier report are removed; files that no report wrote stay. The same rows give the same bytes.

    Args:
        rows: rows as `lra.runners.store.read_rows` returns them.
        folder: the folder of the report, which is made if it does not exist.
        title: the heading of the page.
        sections: for each runner, the function that makes the section of its rows, or the reason
            why there is none. Rows of runners without a section become a table of their metrics.
        groups: families by kind, for figures of more models than one plot can show.
        left_out: sentences about what the rows lack, and why.
        metrics: for each runner without a section, the metrics that come first in its table.
        deviations: for each run, by name of a setting, a sentence about how the setting differs
            from the source of the protocol.
        cells: for each run, by key, the configuration, command and environment for the page.
        style: how figures and tables look, and which models they show.

    Raises:
        NoRows: there are no rows.
        ValueError: columns are missing.
        ForeignFile: the folder has a file of a needed name that no report wrote.
        StyleError: the style fits none of the rows, or gives two models the same name.
    """
    # a command line may contain bytes that are not valid UTF-8
    title = title.encode(errors="replace").decode()
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ForeignFile(f"{folder} is a file; name a folder for the report, new or existing")
    folder.mkdir(parents=True, exist_ok=True)
    with using(style), tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as temporary:
        frame, draft = _write_draft(
            rows, Path(temporary), sections=sections, groups=groups, metrics=metrics,
            deviations=deviations,
        )  # fmt: skip
        write_documents(
            draft.folder, frame, draft.sections(), title=title,
            left_out=[*left_out, *draft.left_out], cells=cells,
        )  # fmt: skip
        names = sorted(path.name for path in draft.folder.iterdir())
        install(draft.folder, folder, names)
    pages = ["report.md", "report.html"]
    return [folder / name for name in pages + [n for n in names if n not in pages]]


def write_parts(
    rows: pd.DataFrame,
    folder: Path,
    *,
    sections: Mapping[str, SectionOf | str] = NONE,
    groups: Mapping[str, Sequence[str]] = NONE,
    deviations: Mapping[str, Mapping[str, str]] = NONE,
    style: ReportStyle = DEFAULT,
) -> None:
    """Write only the tables and figures of a report, into a new folder; see `write_report`."""
    folder.mkdir(parents=True)
    with using(style):
        _write_draft(rows, folder, sections=sections, groups=groups, deviations=deviations)


def _write_draft(
    rows: pd.DataFrame,
    folder: Path,
    *,
    sections: Mapping[str, SectionOf | str],
    groups: Mapping[str, Sequence[str]],
    deviations: Mapping[str, Mapping[str, str]],
    metrics: Mapping[str, Sequence[str]] = NONE,
) -> tuple[pd.DataFrame, _Draft]:
    """Write tables and figures in the style in force; see `write_report` for the arguments.

    Returns:
        The prepared rows that the style shows, and the draft with its contents.
    """
    frame, notes = current_style().select(prepare(rows))
    models = [str(n) for n in frame["name"][frame["baseline"] == ""].unique()]
    by_kind = names_by_group(frame, groups)
    draft = _Draft(folder, looks(models), by_kind, left_out=notes)
    runners = set(frame["runner"])
    of_runners = {runner: section for runner, section in sections.items() if runner in runners}
    available = {r: section for r, section in of_runners.items() if not isinstance(section, str)}
    protocols = partial(arena.section, kinds=groups, sentences=deviations)
    all_sections: list[SectionOf] = [protocols, *EVERY, *available.values()]
    with parallel_drawing(enabled=len(frame) >= _LARGE):
        for section in dict.fromkeys(all_sections):  # several runners may share a section
            draft.show(section(frame))
    if draft.points:
        files = ", ".join(draft.points)
        draft.left_out.append(
            f"figures with a single point on each line are not drawn; their numbers are in {files}"
        )
    draft.show(
        LeftOut(f"section of {r}", why) for r, why in of_runners.items() if isinstance(why, str)
    )
    draft.show(generic_tables(frame[~frame["runner"].isin([*available])], metrics))
    return frame, draft

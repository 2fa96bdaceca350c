"""A report's two documents: report.md, and report.html, which needs no network."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from reports.page.configurations import CellAccount
from reports.page.markup import render
from reports.page.provenance import failures, provenance
from reports.page.tables import to_html
from reports.tables import Table, escape_markdown, to_markdown

TABLE_FORMS = ("csv", "tex")
FIGURE_FORMS = ("pdf", "svg", "png", "csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """One heading of a report, with a table or a figure."""

    heading: str
    file: str
    """Name of its files, without the ending."""
    table: Table | None = None
    """None for a figure."""
    text: str = ""
    """What a figure shows; empty for a table."""

    @property
    def forms(self) -> tuple[str, ...]:
        """Return the endings of the files that the documents link to."""
        return FIGURE_FORMS if self.table is None else TABLE_FORMS


def write_documents(
    folder: Path,
    frame: pd.DataFrame,
    sections: Sequence[ReportSection],
    *,
    title: str,
    left_out: Sequence[str],
    cells: Mapping[str, CellAccount],  # noqa: ARG001 - shown by the page that comes next
) -> None:
    """Write report.md and report.html beside the files of the sections.

    Args:
        folder: holds the files of the sections.
        frame: rows, prepared.
        sections: in the order of the report.
        title: heading of the report.
        left_out: what is not among the rows, and why.
        cells: what is known of each cell, by key.
    """
    absent = [*left_out, *failures(frame)]
    facts = provenance(frame)
    lines = [f"# {escape_markdown(title)}", "", *(f"- {escape_markdown(f)}" for f in facts), ""]
    for section in sections:
        lines += [f"## {escape_markdown(section.heading)}", "", *_markdown(section), ""]
    lines += ["## Left out, and why", ""]
    lines += [f"- {escape_markdown(line)}" for line in absent] or ["Nothing."]
    (folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

    shown = []
    for section in sections:
        file = folder / f"{section.file}.svg"
        drawing = _inline_svg(file.read_text("utf-8"), section.file) if section.text else ""
        table = "" if section.table is None else to_html(section.table)
        shown.append((section, table, drawing))
    page = render("report.html.j2", title=title, facts=facts, sections=shown, left_out=absent)
    (folder / "report.html").write_text(page, encoding="utf-8")


def _markdown(section: ReportSection) -> list[str]:
    """Return a table with its files, or a picture with its files."""
    links = ", ".join(f"[{section.file}.{form}]({section.file}.{form})" for form in section.forms)
    if section.table is not None:
        return [to_markdown(section.table), f"Files: {links}"]
    return [f"![{escape_markdown(section.text)}]({section.file}.png)", "", f"Files: {links}"]


def _inline_svg(text: str, file: str) -> str:
    """Return a drawing from behind its `<svg`, for a page of several: ids gain the file's name."""
    drawing = text[text.index("<svg") + len("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{file}-', drawing)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{file}-", drawing)

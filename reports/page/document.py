"""Write the two documents of a report: report.md, and report.html, which works offline."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lra.reports.labels import TIMED, labels_of
from lra.reports.page import scripts
from lra.reports.page.configurations import CellAccount, cells_json, environment_table, listed_cells
from lra.reports.page.markup import render, script_json
from lra.reports.rows import MARKS, as_text, by_setting, cost_points, cost_rows, short, values
from lra.reports.tables.costs import busy
from lra.reports.tables.table import (
    Entry,
    Table,
    escape_markdown,
    groups_of,
    sections_of,
    to_markdown,
)

MOST_DRAWN = 3_000_000
"""The most bytes of drawings in the page; it links to further drawings."""
MOST_FAILED = 1_500
"""The most lines of failures in the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """One heading of a report, with a table or a figure."""

    heading: str
    file: str
    """The name of its files, without endings."""
    table: Table | None = None
    """The table; None for a figure."""
    text: str = ""
    """What the figure shows; "" for a table."""
    forms: tuple[str, ...]
    """Endings of the files that the documents link to."""


def write_documents(
    folder: Path,
    frame: pd.DataFrame,
    sections: Sequence[ReportSection],
    *,
    title: str,
    left_out: Sequence[str],
    cells: Mapping[str, CellAccount],
) -> None:
    """Write report.md and report.html into the folder of the sections.

    Args:
        folder: the folder with the files of the sections.
        frame: the prepared rows.
        sections: the sections in their order.
        title: the heading of the report.
        left_out: sentences about missing parts, and why they are missing.
        cells: the stored information about each run, by key.
    """
    text = markdown(frame, sections, title=title, left_out=left_out)
    (folder / "report.md").write_text(text, encoding="utf-8")
    html = page(folder, frame, sections, title=title, left_out=left_out, cells=cells)
    (folder / "report.html").write_text(html, encoding="utf-8")


def markdown(
    frame: pd.DataFrame, sections: Sequence[ReportSection], *, title: str, left_out: Sequence[str]
) -> str:
    """Return report.md; see `write_documents`."""
    absent = [*left_out, *failures(frame)]
    facts = provenance(frame)
    remark = busy_machine(frame)
    lines = [
        f"# {escape_markdown(title)}",
        "",
        *([remark, ""] if remark else []),
        *(f"- {escape_markdown(f)}" for f in facts),
        "",
    ]
    for section in sections:
        lines += [f"## {escape_markdown(section.heading)}", "", *_markdown(section), ""]
    lines += ["## Excluded, and why", ""]
    lines += [f"- {escape_markdown(line)}" for line in absent] or ["Nothing is excluded."]
    return "\n".join(lines) + "\n"


def _markdown(section: ReportSection) -> list[str]:
    """Return the lines of a section: its table, or its picture and text, and links to its files."""
    links = ", ".join(f"[{section.file}.{form}]({section.file}.{form})" for form in section.forms)
    if section.table is not None:
        return [to_markdown(section.table), f"Files: {links}"]
    picture = "png" if "png" in section.forms else "svg"
    heading, text = escape_markdown(section.heading), escape_markdown(section.text)
    return [f"![{heading}]({section.file}.{picture})", "", text, "", f"Files: {links}"]


# ----------------------------------------------------------------------------------- page


def page(
    folder: Path,
    frame: pd.DataFrame,
    sections: Sequence[ReportSection],
    *,
    title: str,
    left_out: Sequence[str],
    cells: Mapping[str, CellAccount],
) -> str:
    """Return report.html; see `write_documents`."""
    listed = cells_json(frame, listed_cells(frame), cells)
    failed = failed_lines(frame)
    tables, sheet = scripts.data_tables()
    return render(
        "report.html.j2",
        title=title,
        facts=provenance(frame),
        busy=busy_machine(frame),
        tiles=_tiles(frame),
        contents=_contents(sections),
        sections=_render_sections(folder, sections, _reasons(frame)),
        failed=failed[:MOST_FAILED],
        more_failed=max(0, len(failed) - MOST_FAILED),
        left_out=left_out,
        more_cells=listed["more"],
        machine=_machine(frame, cells),
        data=script_json(listed),
        scripts={"tables": tables, "own": scripts.page_script()},
        sheets={"tables": sheet, "own": scripts.page_style()},
        link=link,
    )  # fmt: skip


def _render_sections(
    folder: Path, sections: Sequence[ReportSection], reasons: Collection[str]
) -> list[tuple[ReportSection, str, str]]:
    """Return (section, table, drawing); a drawing is "" if the page has no room for it."""
    rendered, bytes_left = [], MOST_DRAWN
    for section in sections:
        table = drawing = ""
        if section.table is not None:
            table = to_html(section.table, section.file, reasons)
        else:
            text = (folder / f"{section.file}.svg").read_text(encoding="utf-8")
            if len(text) <= bytes_left:
                drawing = _inline_svg(text, section.file)
                bytes_left -= len(text)
        rendered.append((section, table, drawing))
    return rendered


def _reasons(frame: pd.DataFrame) -> set[str]:
    """Return the reasons of failures in the forms in which notes of tables have them."""
    failed = frame[frame["status"] != "ok"][["status", "reason"]].drop_duplicates()
    reasons = set()
    for status, reason in failed.itertuples(index=False):
        text = short(str(reason))
        reasons |= {text, f"{MARKS.get(status, status)}: {text}"}
    return reasons


def _contents(sections: Sequence[ReportSection]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the table of contents: for each group, its title and (id, heading) of sections."""
    groups = [
        ("Tables", [(f"s-{s.file}", s.heading) for s in sections if s.table is not None]),
        ("Figures", [(f"s-{s.file}", s.heading) for s in sections if s.table is None]),
        ("Record", [("failed", "Failed and excluded"), ("cells", "Every run"),
                    ("environment", "Environment")]),
    ]  # fmt: skip
    return [(title, entries) for title, entries in groups if entries]


def _tiles(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the counts at the top of the page, with their names."""
    models = frame[frame["baseline"] == ""]
    absent = set(frame["cell"]) - set(frame["cell"][frame["status"] == "ok"])
    tiles = [
        ("models", f"{models['name'].nunique():,}"),
        ("tasks", f"{frame['task'].nunique():,}"),
        ("lengths", f"{frame['length'].nunique():,}"),
        ("seeds", f"{frame['seed'].nunique():,}"),
        ("runs", f"{frame['cell'].nunique():,}"),
        ("not measured", f"{len(absent):,}"),
        ("rows", f"{len(frame):,}"),
    ]
    devices = [as_text(device) for device in frame["device"].unique()]
    return [*tiles, ("machine", devices[0] if len(devices) == 1 else f"{len(devices)} kinds")]


def _machine(
    frame: pd.DataFrame, accounts: Mapping[str, CellAccount]
) -> list[tuple[str, list[str]]]:
    """Return each fact about machines and versions with its values, for a table of the page."""
    columns = ("hardware", "device", "precision", "threads", "schema", "fingerprint")
    settings = [(name, sorted({as_text(v) for v in frame[name].unique()})) for name in columns]
    return [*settings, *environment_table(accounts)]


def _inline_svg(text: str, file: str) -> str:
    """Return the text of an SVG after its `<svg`; the file's name makes its ids unique."""
    drawing = text[text.index("<svg") + len("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{file}-', drawing)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{file}-", drawing)


_NAMED = 8
"""The most lengths, or seeds, that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """Runs of one model that failed for the same reason."""

    model: str
    task: str
    mode: str
    what: str
    """The number that is missing; "" if all are missing."""
    places: str
    """Lengths and seeds in words."""
    outcome: str
    reason: str
    cells: tuple[str, ...]


def failed_lines(frame: pd.DataFrame) -> list[FailedLine]:
    """Return a line for each model and reason; a run without any number is in a single line."""
    failed = frame[frame["status"] != "ok"]
    without_number = set(failed["cell"]) - set(frame["cell"][frame["status"] == "ok"])
    groups: dict[tuple[str, ...], dict[str, tuple[Any, Any]]] = {}
    listed: set[str] = set()
    columns = ("cell", "name", "task", "mode", "length", "seed", "metric", "reference", "status",
               "reason", "labels")  # fmt: skip
    for line in zip(*(values(failed, c) for c in columns), strict=True):
        cell, name, task, mode, length, seed, metric, reference, status, reason, labels = line
        if cell in without_number:
            if cell in listed:
                continue
            listed.add(cell)
            number = ""
        else:
            number = f"against {reference}" if reference else str(metric).replace("_", " ")
            if factor := labels_of(labels).get("factor"):
                number += f" at {factor} times the training length"
        key = (number, str(name), as_text(task), str(mode), str(status), str(reason))
        groups.setdefault(key, {})[str(cell)] = (length, seed)
    return [
        FailedLine(
            model=name, task=task, mode=mode, what=number, outcome=MARKS.get(status, status),
            reason=reason, cells=tuple(cells), places=_places_in_words(cells.values()),
        )
        # runs without any number come first
        for (number, name, task, mode, status, reason), cells in sorted(
            groups.items(), key=lambda group: group[0][0] != ""
        )
    ]  # fmt: skip


def _places_in_words(places: Iterable[tuple[Any, Any]]) -> str:
    """Return (length, seed) pairs in words, as in "lengths 256, 512; seed 0"."""
    pairs = list(places)
    parts = []
    for name, numbered in (("length", [n for n, _ in pairs]), ("seed", [s for _, s in pairs])):
        numbers = sorted({int(value) for value in numbered if not pd.isna(value)})
        if numbers:
            words = [f"{number:,}" for number in numbers[:_NAMED]]
            rest = len(numbers) - len(words)
            text = ", ".join(words) + (f" and {rest} more" if rest > 0 else "")
            parts.append(f"{name}{'s' if len(numbers) > 1 else ''} {text}")
    return "; ".join(parts)


def busy_machine(frame: pd.DataFrame) -> str:
    """Return a sentence about times that other processes disturbed; "" if there are none."""
    timed = cost_rows(frame)
    if timed.empty or not (timed["disturbed"] != "").any():
        return ""
    return busy([point for part in by_setting(timed) for point in cost_points(part.rows)])


def provenance(frame: pd.DataFrame) -> list[str]:
    """Return facts about the origin of the rows: tasks, machine, seeds, sources and date."""

    def values_of(column: str) -> str:
        """Return the first values of a column, joined."""
        texts = sorted({as_text(v) for v in frame[column].unique()} - {"–"})
        return _first_items(texts, 6, ", ") if texts else "not recorded"

    tasks = frame[["task", "task_version", "source"]].drop_duplicates()
    named = sorted(
        f"{as_text(t)} version {as_text(v)} (data: {as_text(s)})" for t, v, s in tasks.to_numpy()
    )
    written = pd.to_datetime(frame["created"], utc=True).dropna()
    newest = written.max().strftime("%Y-%m-%d %H:%M UTC") if len(written) else "not recorded"
    cells = frame["cell"].nunique()
    machine = f"{values_of('device')}; {values_of('precision')}; threads {values_of('threads')}"
    return [
        f"Tasks: {'; '.join(named)}",
        f"Hardware profile: {values_of('hardware')}; machine: {machine}",
        f"Seeds: {values_of('seed')}",
        f"Rows: {len(frame):,} from {cells:,} runs (schema {values_of('schema')}); fingerprints of "
        f"the source code: {values_of('fingerprint')}",
        f"Newest row: {newest}",
    ]


def failures(frame: pd.DataFrame) -> list[str]:
    """Return a line for each reason of failures."""
    failed = frame[frame["status"] != "ok"]
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for row in failed.itertuples():
        against = f" against {row.reference!s}" if row.reference else ""
        where = (
            f"length {as_text(row.length)}"
            if row.metric in {*TIMED, "output_error"} or against
            else f"seed {as_text(row.seed)}"
        )
        if factor := labels_of(row.labels).get("factor"):
            where = f"{factor} times the training length, {where}"
        key = (str(row.status), str(row.reason), f"{row.name}{against}, {row.task}, {row.mode}")
        if where not in by_reason.setdefault(key, []):
            by_reason[key].append(where)
    return [
        f"{who}: {MARKS[status]}: {reason} ({_first_items(positions)})"
        for (status, reason, who), positions in sorted(by_reason.items())
    ]


def _first_items(items: Sequence[str], at_most: int = 4, between: str = "; ") -> str:
    """Return the first items, joined, and how many more there are."""
    rest = len(items) - at_most
    return between.join(items[:at_most]) + (f"{between}and {rest} more" if rest > 0 else "")


MOST_LINES = 1_500
"""The most lines of a table in the page; its files have all lines."""
_LINKED = 12
"""The most runs that one link names."""


def to_html(table: Table, file: str = "", reasons: Collection[str] = ()) -> str:
    """Return a table as a fragment of HTML; the page adds the style and the script for sorting.

    Notes about failures are omitted, because the page has a list of failures.

    Args:
        table: the table.
        file: the name of its files, which becomes the id of the element.
        reasons: the reasons of failures, as notes have them.
    """
    reasons_in_list = frozenset(reasons)
    shown = table.rows[:MOST_LINES]

    def shown_notes(entry: Entry) -> tuple[str, ...]:
        """Return the notes of an entry, without reasons that the page's list of failures has."""
        if entry.status in MARKS and entry.cells:
            return ()
        return tuple(note for note in entry.notes if note not in reasons_in_list)

    notes = [note for row in shown for entry in row.entries for note in shown_notes(entry)]
    notes = list(dict.fromkeys(notes))
    if hidden := len(table.rows) - len(shown):
        notes.append(f"The page omits {hidden:,} further lines of this table; {file}.csv has them.")
    return render(
        "table.html.j2",
        table=table,
        file=file,
        groups=groups_of(table.columns),
        sections=sections_of(shown),
        sectioned=any(row.section for row in shown),
        notes=notes,
        numbers=lambda entry: [notes.index(note) + 1 for note in shown_notes(entry)],
        order=_sort_value,
        link=link,
    )


def link(cells: Sequence[str]) -> str:
    """Return the address within the page of the information about these runs."""
    return "#cell-" + ",".join(cells[:_LINKED])


def _sort_value(entry: Entry) -> str:
    """Return the number by which the page sorts an entry; "" for entries that come last."""
    return "" if entry.value is None else repr(float(entry.value))

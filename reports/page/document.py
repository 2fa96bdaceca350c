"""A report's two documents: report.md, and report.html, which needs no network."""

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
"""Bytes of drawings that the page holds; further ones are linked."""
MOST_FAILED = 1_500
"""Lines of failures on the page."""


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
        folder: holds the files of the sections.
        frame: rows, prepared.
        sections: in the order of the report.
        title: heading of the report.
        left_out: what is not among the rows, and why.
        cells: what is stored of each cell, by key.
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
    lines += [f"- {escape_markdown(line)}" for line in absent] or ["Nothing."]
    return "\n".join(lines) + "\n"


def _markdown(section: ReportSection) -> list[str]:
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
        sections=_rendered(folder, sections, _reasons(frame)),
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


def _rendered(
    folder: Path, sections: Sequence[ReportSection], reasons: Collection[str]
) -> list[tuple[ReportSection, str, str]]:
    """Return each section with its table or its drawing, while the page has room."""
    rendered, room = [], MOST_DRAWN
    for section in sections:
        table = drawing = ""
        if section.table is not None:
            table = to_html(section.table, section.file, reasons)
        else:
            text = (folder / f"{section.file}.svg").read_text(encoding="utf-8")
            if len(text) <= room:
                drawing = _inline_svg(text, section.file)
                room -= len(text)
        rendered.append((section, table, drawing))
    return rendered


def _reasons(frame: pd.DataFrame) -> set[str]:
    """Return why cells failed, as the notes of tables say it."""
    bad = frame[frame["status"] != "ok"][["status", "reason"]].drop_duplicates()
    reasons = set()
    for status, reason in bad.itertuples(index=False):
        text = short(str(reason))
        reasons |= {text, f"{MARKS.get(status, status)}: {text}"}
    return reasons


def _contents(sections: Sequence[ReportSection]) -> list[tuple[str, list[tuple[str, str]]]]:
    groups = [
        ("Tables", [(f"s-{s.file}", s.heading) for s in sections if s.table is not None]),
        ("Figures", [(f"s-{s.file}", s.heading) for s in sections if s.table is None]),
        ("Record", [("failed", "Failed and excluded"), ("cells", "Every run"),
                    ("environment", "Environment")]),
    ]  # fmt: skip
    return [(title, entries) for title, entries in groups if entries]


def _tiles(frame: pd.DataFrame) -> list[tuple[str, str]]:
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
    columns = ("hardware", "device", "precision", "threads", "schema", "fingerprint")
    settings = [(name, sorted({as_text(v) for v in frame[name].unique()})) for name in columns]
    return [*settings, *environment_table(accounts)]


def _inline_svg(text: str, file: str) -> str:
    """Return a drawing from behind its `<svg`, for a page of several: ids gain the file's name."""
    drawing = text[text.index("<svg") + len("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{file}-', drawing)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{file}-", drawing)


_NAMED = 8
"""Lengths, or seeds, that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedLine:
    """Cells of one model that have no number for one reason."""

    model: str
    task: str
    mode: str
    what: str
    """Which number is absent; empty where all are."""
    places: str
    """Lengths and seeds."""
    outcome: str
    reason: str
    cells: tuple[str, ...]


def failed_lines(frame: pd.DataFrame) -> list[FailedLine]:
    """Return one line for each model and reason; a cell that has no number at all is in one.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
    """
    bad = frame[frame["status"] != "ok"]
    whole = set(bad["cell"]) - set(frame["cell"][frame["status"] == "ok"])
    groups: dict[tuple[str, ...], dict[str, tuple[Any, Any]]] = {}
    met: set[str] = set()
    columns = ("cell", "name", "task", "mode", "length", "seed", "metric", "reference", "status",
               "reason", "labels")  # fmt: skip
    for line in zip(*(values(bad, c) for c in columns), strict=True):
        cell, name, task, mode, length, seed, metric, reference, status, reason, labels = line
        if cell in whole:
            if cell in met:
                continue
            met.add(cell)
            what = ""
        else:
            what = f"against {reference}" if reference else str(metric).replace("_", " ")
            if factor := labels_of(labels).get("factor"):
                what += f" at {factor} times the training length"
        key = (what, str(name), as_text(task), str(mode), str(status), str(reason))
        groups.setdefault(key, {})[str(cell)] = (length, seed)
    return [
        FailedLine(
            model=name, task=task, mode=mode, what=what, outcome=MARKS.get(status, status),
            reason=reason, cells=tuple(cells), places=_places(cells.values()),
        )
        for (what, name, task, mode, status, reason), cells in sorted(
            groups.items(), key=lambda group: group[0][0] != ""
        )
    ]  # fmt: skip


def _places(places: Iterable[tuple[Any, Any]]) -> str:
    """Return lengths and seeds in a few words."""
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
    """Return how far factors hold that were measured on a busy machine; "" of a quiet one."""
    timed = cost_rows(frame)
    if timed.empty or not (timed["disturbed"] != "").any():
        return ""
    return busy([point for part in by_setting(timed) for point in cost_points(part.rows)])


def provenance(frame: pd.DataFrame) -> list[str]:
    """Return what the rows say about where they come from."""

    def values(column: str) -> str:
        texts = sorted({as_text(v) for v in frame[column].unique()} - {"–"})
        return _some(texts, 6, ", ") if texts else "not recorded"

    tasks = frame[["task", "task_version", "source"]].drop_duplicates()
    named = sorted(
        f"{as_text(t)} version {as_text(v)} (data: {as_text(s)})" for t, v, s in tasks.to_numpy()
    )
    written = pd.to_datetime(frame["created"], utc=True).dropna()
    newest = written.max().strftime("%Y-%m-%d %H:%M UTC") if len(written) else "not recorded"
    cells = frame["cell"].nunique()
    machine = f"{values('device')}; {values('precision')}; threads {values('threads')}"
    return [
        f"Tasks: {'; '.join(named)}",
        f"Hardware profile: {values('hardware')}; machine: {machine}",
        f"Seeds: {values('seed')}",
        f"Rows: {len(frame):,} from {cells:,} runs, schema {values('schema')}; "
        f"sources (fingerprints): {values('fingerprint')}",
        f"Newest row: {newest}",
    ]


def failures(frame: pd.DataFrame) -> list[str]:
    """Return one line per reason for which a number is absent."""
    bad = frame[frame["status"] != "ok"]
    by_reason: dict[tuple[str, ...], list[str]] = {}
    for row in bad.itertuples():
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
        f"{who}: {MARKS[status]}: {reason} ({_some(positions)})"
        for (status, reason, who), positions in sorted(by_reason.items())
    ]


def _some(items: Sequence[str], at_most: int = 4, between: str = "; ") -> str:
    rest = len(items) - at_most
    return between.join(items[:at_most]) + (f"{between}and {rest} more" if rest > 0 else "")


MOST_LINES = 1_500
"""Of one table on the page; its files have all."""
_LINKED = 12
"""Cells that one link names."""


def to_html(table: Table, file: str = "", reasons: Collection[str] = ()) -> str:
    """Render a fragment without scripts; the page around it brings style and sorting.

    Why a cell failed stands in the page's list of failures, so notes of failures are left out here.

    Args:
        table: what to render.
        file: name of its files, which makes the element's id.
        reasons: for which cells failed, as notes say them.
    """
    listed = frozenset(reasons)
    kept = table.rows[:MOST_LINES]

    def kept_notes(entry: Entry) -> tuple[str, ...]:
        if entry.status in MARKS and entry.cells:
            return ()
        return tuple(note for note in entry.notes if note not in listed)

    notes = list(dict.fromkeys(note for row in kept for e in row.entries for note in kept_notes(e)))
    left_out = len(table.rows) - len(kept)
    if left_out:
        notes.append(f"{left_out:,} further lines are in {file}.csv")
    return render(
        "table.html.j2",
        table=table,
        file=file,
        groups=groups_of(table.columns),
        sections=sections_of(kept),
        sectioned=any(row.section for row in kept),
        notes=notes,
        numbers=lambda entry: [notes.index(note) + 1 for note in kept_notes(entry)],
        order=_order,
        link=link,
    )


def link(cells: Sequence[str]) -> str:
    """Return the address, within the page, of what is stored of cells."""
    return "#cell-" + ",".join(cells[:_LINKED])


def _order(entry: Entry) -> str:
    """Return the number by which an entry is sorted; nothing for one that comes last."""
    return "" if entry.value is None else repr(float(entry.value))

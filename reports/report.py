"""Write every table and figure that the rows allow, and a page that shows them."""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pandas as pd

from reports.figures.curves import (
    CLASSES,
    EVALUATION,
    STEP,
    Axis,
    class_data,
    curve_figure,
    loss_data,
    page_names,
    pages,
)
from reports.figures.drawing import Look, looks, save
from reports.figures.panels import line_figures
from reports.figures.scaling import QUANTITIES, scaling_data
from reports.page import render
from reports.rows import (
    MARKS,
    TIMED,
    cost_points,
    cost_rows,
    labels_of,
    names_by_group,
    prepare,
    settings,
    shown,
)
from reports.sections.accuracy import score_tables, splits
from reports.sections.approximation_lab import approximation_parts
from reports.sections.arena import arena_parts
from reports.sections.attention_maps import map_parts
from reports.sections.attention_mass import mass_parts
from reports.sections.compression import compression_parts
from reports.sections.context import context_parts
from reports.sections.decoding import decode_parts
from reports.sections.efficiency import (
    crossover_table,
    describe_pass,
    efficiency_table,
    growth_table,
    modes,
)
from reports.sections.extrapolation import extrapolation_parts
from reports.sections.generic import generic_tables
from reports.sections.patterns import pattern_parts
from reports.sections.peers import peer_parts
from reports.sections.recovery import recovery_parts
from reports.sections.spans import span_parts
from reports.sections.trainings import training_parts
from reports.stems import stem
from reports.tables import Table, escape_markdown, to_csv, to_html, to_latex, to_markdown

Parts = Callable[[pd.DataFrame, dict[str, Look], Path], Iterator[tuple[str, str, Table | str]]]
"""Saves the figures of one runner; yields stem, heading, and a table, or the text of a figure."""
SECTIONS: Mapping[str, Parts] = {
    "peers": peer_parts,
    "transfer": recovery_parts,
    "approximation": approximation_parts,
    "extrapolate": extrapolation_parts,
    "span": span_parts,
    "context": context_parts,
    "attention_mass": mass_parts,
    "compress": compression_parts,
    "attention_maps": map_parts,
    "pattern": pattern_parts,
}
"""Runners that have a section of their own, and what writes it."""
SHOWN = frozenset({*SECTIONS, "decode", "train", "dynamic_evaluation", "certify", "scaling"})
"""Runners whose rows are shown, the last four by scores, curves and costs; rows of all others
are a table of their metrics."""
MANIFEST = ".report.json"
"""Names of the files that the last report wrote here, and nothing else."""


class Occupied(FileExistsError):
    """The folder holds a file that no report wrote, under a name that a report needs."""


@dataclass(slots=True)
class _Section:
    """One heading of the page, with a table or a figure."""

    heading: str
    markdown: str
    file: str
    """Name of its files, without the ending."""
    forms: tuple[str, ...]
    """Endings of its files that the page links to."""
    table: str = ""
    """As HTML; empty for a figure."""
    drawing: str = ""
    """An SVG from behind its first `<svg`; empty for a table."""
    text: str = ""
    """What a figure shows."""


@dataclass(slots=True)
class _Draft:
    """The report while it is written, in a temporary folder."""

    folder: Path
    looks: dict[str, Look]
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of models by the kind of their family."""
    sections: list[_Section] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def table(self, file: str, table: Table, heading: str) -> None:
        """Write one table in its three forms and show it."""
        markdown = to_markdown(table)
        (self.folder / f"{file}.md").write_text(markdown, encoding="utf-8")
        (self.folder / f"{file}.csv").write_text(to_csv(table), encoding="utf-8")
        (self.folder / f"{file}.tex").write_text(to_latex(table), encoding="utf-8")
        files = f"Files: [{file}.csv]({file}.csv), [{file}.tex]({file}.tex)"
        self.sections.append(
            _Section(heading, f"{markdown}\n{files}", file, ("csv", "tex"), table=to_html(table))
        )

    def figure(self, file: str, heading: str, text: str) -> None:
        """Show one figure whose files were saved."""
        forms = ("pdf", "svg", "png", "csv")
        links = ", ".join(f"[{file}.{form}]({file}.{form})" for form in forms)
        markdown = f"![{escape_markdown(text)}]({file}.png)\n\nFiles: {links}"
        drawing = _inline_svg((self.folder / f"{file}.svg").read_text(encoding="utf-8"), file)
        self.sections.append(_Section(heading, markdown, file, forms, drawing=drawing, text=text))


def write_report(
    rows: pd.DataFrame,
    folder: Path,
    *,
    title: str,
    groups: Mapping[str, Sequence[str]] | None = None,
    left_out: Sequence[str] = (),
    metrics: Mapping[str, Sequence[str]] | None = None,
    deviations: Mapping[str, Mapping[str, str]] | None = None,
) -> list[Path]:
    """Write tables, figures, report.md and report.html; return their paths, the page first.

    Everything is made in a temporary folder and moved when complete. Files of an earlier report in
    `folder` go; files that no report wrote stay. The same rows give the same bytes.

    Args:
        rows: as `runners.store.read_rows` returns them.
        folder: made where it does not exist.
        title: heading of the page.
        groups: families by kind, for figures of more models than one plot can hold.
        left_out: what is not among the rows, and why.
        metrics: by runner, the metrics that come first in its table, of a runner not in `SHOWN`.
        deviations: by cell, sentences by name: what is not as in the source of its protocol.

    Raises:
        NoRows: there are no rows.
        ValueError: columns are missing.
        Occupied: a file that no report wrote stands in the way.
    """
    frame = prepare(rows)
    title = title.encode(errors="replace").decode()  # bytes of a command line that are no text
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as temporary:
        models = [str(n) for n in frame["name"][frame["baseline"] == ""].unique()]
        by_kind = names_by_group(frame, groups or {})
        draft = _Draft(Path(temporary), looks(models), by_kind, left_out=[*left_out])
        arena = partial(arena_parts, kinds=groups or {}, sentences=deviations or {})
        _show(draft, arena(frame, draft.looks, draft.folder))
        _accuracy(draft, frame)
        _costs(draft, frame)
        _curves(draft, frame)
        _further(draft, frame)
        others = frame[~frame["runner"].isin(SHOWN)]
        for file, heading, table in generic_tables(others, metrics or {}):
            draft.table(file, table, heading)
        _pages(draft, frame, title)
        names = sorted(path.name for path in draft.folder.iterdir())
        _install(draft.folder, folder, names)
    first = ["report.md", "report.html"]
    return [folder / name for name in first + [n for n in names if n not in first]]


def _accuracy(draft: _Draft, frame: pd.DataFrame) -> None:
    found = splits(frame)
    for split in found:
        for metric, table in score_tables(frame, split):
            name = metric.replace("_", "-")
            file = name if split == "test" else f"{name}-{stem(split)}"
            draft.table(file, table, f"{metric.replace('_', ' ').capitalize()}, {split} split")
    if "test" not in found:
        draft.left_out.append("accuracy: no final accuracy on the test split among the rows")


def _costs(draft: _Draft, frame: pd.DataFrame) -> None:
    timed = cost_rows(frame)
    if timed.empty:
        draft.left_out.append("time, memory, efficiency, crossover: no timed passes among the rows")
        return
    parts = settings(timed)
    for part in parts:
        points = cost_points(part.rows)
        where = f" ({part.title})" if len(parts) > 1 else ""
        for mode in modes(points):
            table = efficiency_table(points, mode)
            if table is not None:
                heading = f"Efficiency, {describe_pass(mode)}{where}"
                draft.table(f"efficiency-{stem(mode)}{part.suffix}", table, heading)
            for quantity in QUANTITIES:
                data = scaling_data(points, mode, quantity)
                file = f"{quantity}-{stem(mode)}{part.suffix}"
                if data["value"].isna().all():
                    draft.left_out.append(f"{file}: no number among its points, only reasons")
                    continue
                text = f"{QUANTITIES[quantity]} against length, {describe_pass(mode)}"
                shown_in = line_figures(data, draft.looks, draft.groups, subtitle=part.title)
                names = page_names(file, f"{text[0].upper()}{text[1:]}{where}", len(shown_in))
                for (own, figure), (name, heading) in zip(shown_in, names, strict=True):
                    save(figure, draft.folder, name, own)
                    draft.figure(name, heading, text)
        further: list[tuple[str, str, Callable[..., Table | None], str]] = [
            ("crossover", "Crossover", crossover_table, "no reference was measured beside a model"),
            ("growth", "Growth", growth_table, "no model was measured at two lengths"),
        ]
        for file, heading, build, why in further:
            table = build(points)
            if table is None:
                draft.left_out.append(f"{file}{part.suffix}: {why}")
            else:
                draft.table(f"{file}{part.suffix}", table, f"{heading}{where}")


def _curves(draft: _Draft, frame: pd.DataFrame) -> None:
    data = loss_data(frame)
    if data.empty:
        draft.left_out.append("training loss: no loss curves among the rows")
        return
    _pages_of_curves(draft, data, STEP, "training-loss", "training loss against optimiser step")
    for split in splits(frame):
        for kind, axis in CLASSES.items():
            data = class_data(frame, split, kind)
            if not data.empty:
                file = f"loss-by-{'place' if kind == 'position' else kind.replace('_', '-')}"
                file = file if split == "test" else f"{file}-{stem(split)}"
                text = f"{axis.title.lower()}, {split} split"
                _pages_of_curves(draft, data, axis, file, text)


def _pages_of_curves(draft: _Draft, data: pd.DataFrame, axis: Axis, file: str, text: str) -> None:
    parts = pages(data, EVALUATION)
    names = page_names(file, f"{text[0].upper()}{text[1:]}", len(parts))
    for part, (name, heading) in zip(parts, names, strict=True):
        save(curve_figure(part, draft.looks, axis), draft.folder, name, part)
        draft.figure(name, heading, text)


def _further(draft: _Draft, frame: pd.DataFrame) -> None:
    """Add what other runners are shown by: tables, and texts of figures that were saved."""
    decoding: Parts = partial(decode_parts, groups=draft.groups)
    for parts in (decoding, training_parts, *SECTIONS.values()):
        _show(draft, parts(frame, draft.looks, draft.folder))


def _show(draft: _Draft, parts: Iterator[tuple[str, str, Table | str]]) -> None:
    for file, heading, made in parts:
        if isinstance(made, Table):
            draft.table(file, made, heading)
        elif made:
            draft.figure(file, heading, made)
        else:
            draft.left_out.append(f"{file}: {heading}")


# --------------------------------------------------------------------------------- pages


def provenance(frame: pd.DataFrame) -> list[str]:
    """Return what the rows say about where they come from."""

    def values(column: str) -> str:
        found = sorted({shown(v) for v in frame[column].unique()} - {"–"})
        return _some(found, 6, ", ") if found else "not recorded"

    tasks = frame[["task", "task_version", "source"]].drop_duplicates()
    named = sorted(
        f"{shown(t)} version {shown(v)} (data: {shown(s)})" for t, v, s in tasks.to_numpy()
    )
    written = pd.to_datetime(frame["created"], utc=True).dropna()
    newest = written.max().strftime("%Y-%m-%d %H:%M UTC") if len(written) else "not recorded"
    cells = frame["cell"].nunique()
    machine = f"{values('device')}; {values('precision')}; threads {values('threads')}"
    return [
        f"Tasks: {'; '.join(named)}",
        f"Hardware profile: {values('hardware')}; machine: {machine}",
        f"Seeds: {values('seed')}",
        f"Rows: {len(frame):,} from {cells:,} cells, schema {values('schema')}; "
        f"sources (fingerprints): {values('fingerprint')}",
        f"Newest row: {newest}",
    ]


def failures(frame: pd.DataFrame) -> list[str]:
    """Return one line per reason for which a number is absent."""
    bad = frame[frame["status"] != "ok"]
    found: dict[tuple[str, ...], list[str]] = {}
    for row in bad.itertuples():
        against = f" against {row.reference!s}" if row.reference else ""
        where = (
            f"length {shown(row.length)}"
            if row.metric in {*TIMED, "output_error"} or against
            else f"seed {shown(row.seed)}"
        )
        if factor := labels_of(row.labels).get("factor"):
            where = f"{factor} times the training length, {where}"
        key = (str(row.status), str(row.reason), f"{row.name}{against}, {row.task}, {row.mode}")
        if where not in found.setdefault(key, []):
            found[key].append(where)
    return [
        f"{who}: {MARKS[status]}: {reason} ({_some(positions)})"
        for (status, reason, who), positions in sorted(found.items())
    ]


def _some(items: Sequence[str], at_most: int = 4, between: str = "; ") -> str:
    rest = len(items) - at_most
    return between.join(items[:at_most]) + (f"{between}and {rest} more" if rest > 0 else "")


def _pages(draft: _Draft, frame: pd.DataFrame, title: str) -> None:
    left_out = draft.left_out + failures(frame)
    facts = provenance(frame)
    lines = [f"# {escape_markdown(title)}", "", *(f"- {escape_markdown(f)}" for f in facts), ""]
    for section in draft.sections:
        lines += [f"## {escape_markdown(section.heading)}", "", section.markdown.rstrip(), ""]
    lines += ["## Left out, and why", ""]
    lines += [f"- {escape_markdown(line)}" for line in left_out] or ["Nothing."]
    (draft.folder / "report.md").write_text("\n".join(lines) + "\n", encoding="utf-8")

    page = render(
        "report.html.j2", title=title, facts=facts, sections=draft.sections, left_out=left_out
    )
    (draft.folder / "report.html").write_text(page, encoding="utf-8")


def _inline_svg(text: str, file: str) -> str:
    """Return a drawing from behind its `<svg`, for a page of several: ids gain the file's name."""
    drawing = text[text.index("<svg") + len("<svg") :]
    drawing = re.sub(r'\bid="', f'id="{file}-', drawing)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{file}-", drawing)


# --------------------------------------------------------------------------------- files


def _written_before(folder: Path) -> set[str]:
    manifest = folder / MANIFEST
    if not manifest.is_file():
        return set()
    try:
        names = json.loads(manifest.read_text(encoding="utf-8"))["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise Occupied(
            f"{manifest}: not a report's list of files ({error}); remove it and the old report"
        ) from error
    # names only: a manifest must not reach outside its folder
    return {str(n) for n in names if Path(str(n)).name == str(n)}


def _install(source: Path, folder: Path, names: Sequence[str]) -> None:
    before = _written_before(folder)
    foreign = [n for n in names if (folder / n).exists() and n not in before]
    if foreign:
        raise Occupied(
            f"{folder} holds files that no report wrote: {', '.join(foreign)}; "
            "name another folder (--out) or move them away"
        )
    manifest = folder / MANIFEST

    def record(files: set[str]) -> None:
        draft = source / MANIFEST
        draft.write_text(json.dumps({"files": sorted(files)}, indent=1) + "\n", encoding="utf-8")
        draft.replace(manifest)

    # a report cut off here must still know all files as its own
    record(before | set(names))
    for name in before - set(names):
        (folder / name).unlink(missing_ok=True)
    for name in names:
        shutil.move(source / name, folder / name)
    record(set(names))

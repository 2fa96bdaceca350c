"""Write every table and figure that the rows allow, and a page that shows them."""

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
from reports.figures.processes import beside
from reports.figures.scaling import QUANTITIES, scaling_data
from reports.install import install
from reports.page.configurations import CellAccount
from reports.page.document import ReportSection, write_documents
from reports.rows import cost_points, cost_rows, names_by_group, prepare, settings
from reports.sections.approximation_lab import approximation_parts
from reports.sections.arena import arena_parts
from reports.sections.attention_maps import map_parts
from reports.sections.attention_mass import mass_parts
from reports.sections.compression import compression_parts
from reports.sections.context import context_parts
from reports.sections.decoding import decode_parts
from reports.sections.extrapolation import extrapolation_parts
from reports.sections.generic import generic_tables
from reports.sections.parallel import parallel_parts
from reports.sections.patterns import pattern_parts
from reports.sections.peers import peer_parts
from reports.sections.recovery import recovery_parts
from reports.sections.spans import span_parts
from reports.sections.trainings import training_parts
from reports.stems import fitting, stem
from reports.style import DEFAULT, Captions, ReportStyle, chosen, using
from reports.tables.costs import (
    crossover_table,
    describe_pass,
    efficiency_table,
    growth_table,
    modes,
)
from reports.tables.latex_tables import to_latex
from reports.tables.scores import score_tables, splits
from reports.tables.table import Table, to_csv, to_markdown

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
    "parallel": parallel_parts,
}
"""Runners that have a section of their own, and what writes it."""
SHOWN = frozenset({*SECTIONS, "decode", "train", "dynamic_evaluation", "certify", "scaling"})
"""Runners whose rows are shown, the last four by scores, curves and costs; rows of all others
are a table of their metrics."""


_LARGE = 20_000
"""Rows of a report whose figures are drawn in processes of their own."""
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
    made: list[tuple[str, str, Table | str]] = field(default_factory=list)
    """Heading and name of the files of each part, with a table, or the text of a figure."""
    left_out: list[str] = field(default_factory=list)

    def table(self, file: str, table: Table, heading: str) -> None:
        """Write one table in its three forms and show it."""
        file = fitting(file)
        (self.folder / f"{file}.md").write_text(to_markdown(table), encoding="utf-8")
        (self.folder / f"{file}.csv").write_text(to_csv(table), encoding="utf-8")
        form = chosen().style.tables
        (self.folder / f"{file}.tex").write_text(to_latex(table, form, file), encoding="utf-8")
        if form.captions is Captions.short and table.caption:
            beside = self.folder / f"{file}.caption.txt"
            beside.write_text(f"{table.caption}\n", encoding="utf-8")
        self.made.append((heading, file, table))

    def figure(self, file: str, heading: str, text: str) -> None:
        """Show one figure whose files were saved."""
        self.made.append((heading, fitting(file), text))

    def sections(self) -> list[ReportSection]:
        """Return what was made, once all of its files are there."""
        return [
            ReportSection(
                heading=heading, file=file, table=made, forms=self._forms(file, TABLE_FORMS)
            )
            if isinstance(made, Table)
            else ReportSection(
                heading=heading, file=file, text=made, forms=self._forms(file, FIGURE_FORMS)
            )
            for heading, file, made in self.made
        ]

    def _forms(self, file: str, known: Sequence[str]) -> tuple[str, ...]:
        return tuple(form for form in known if (self.folder / f"{file}.{form}").exists())


def write_report(
    rows: pd.DataFrame,
    folder: Path,
    *,
    title: str,
    groups: Mapping[str, Sequence[str]] | None = None,
    left_out: Sequence[str] = (),
    metrics: Mapping[str, Sequence[str]] | None = None,
    deviations: Mapping[str, Mapping[str, str]] | None = None,
    cells: Mapping[str, CellAccount] | None = None,
    style: ReportStyle = DEFAULT,
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
        cells: by key, configuration, command and environment, which the page shows.
        style: how figures and tables look, and which models they show.

    Raises:
        NoRows: there are no rows.
        ValueError: columns are missing.
        Occupied: a file that no report wrote stands in the way.
        StyleError: the style fits none of the rows, or gives two models one name.
    """
    title = title.encode(errors="replace").decode()  # bytes of a command line that are no text
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with using(style), tempfile.TemporaryDirectory(prefix=".report-", dir=folder) as temporary:
        frame, draft = _drafted(rows, Path(temporary), groups, metrics, deviations)
        write_documents(
            draft.folder, frame, draft.sections(), title=title,
            left_out=[*left_out, *draft.left_out], cells=cells or {}, looks=draft.looks,
        )  # fmt: skip
        names = sorted(path.name for path in draft.folder.iterdir())
        install(draft.folder, folder, names)
    first = ["report.md", "report.html"]
    return [folder / name for name in first + [n for n in names if n not in first]]


def write_parts(
    rows: pd.DataFrame,
    folder: Path,
    *,
    groups: Mapping[str, Sequence[str]] | None = None,
    deviations: Mapping[str, Mapping[str, str]] | None = None,
    style: ReportStyle = DEFAULT,
) -> None:
    """Write tables and figures alone into a new folder; see `write_report`."""
    folder.mkdir(parents=True)
    with using(style):
        _drafted(rows, folder, groups, None, deviations)


def _drafted(
    rows: pd.DataFrame,
    folder: Path,
    groups: Mapping[str, Sequence[str]] | None,
    metrics: Mapping[str, Sequence[str]] | None,
    deviations: Mapping[str, Mapping[str, str]] | None,
) -> tuple[pd.DataFrame, _Draft]:
    """Write tables and figures in the style in force; return them with the rows, prepared."""
    frame, not_shown = chosen().select(prepare(rows))
    models = [str(n) for n in frame["name"][frame["baseline"] == ""].unique()]
    by_kind = names_by_group(frame, groups or {})
    draft = _Draft(folder, looks(models), by_kind, left_out=not_shown)
    arena = partial(arena_parts, kinds=groups or {}, sentences=deviations or {})
    with beside(wanted=len(frame) >= _LARGE):
        _show(draft, arena(frame, draft.looks, draft.folder))
        _accuracy(draft, frame)
        _costs(draft, frame)
        _curves(draft, frame)
        _further(draft, frame)
    others = frame[~frame["runner"].isin(SHOWN)]
    for file, heading, table in generic_tables(others, metrics or {}):
        draft.table(file, table, heading)
    return frame, draft


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

"""What a dashboard gets of stored rows, as plain data: a run per cell or curve, and a report run.

The cells of one curve, equal in all but length and mode, are one run, and so are all baselines.
Rows are mappings, as the store reads them: what writes runs while cells run needs no pandas.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from lra.reports.dashboard import keys as named
from lra.reports.dashboard.describe import BASELINES, describe, group, is_baseline
from lra.reports.dashboard.keys import LENGTH_AXIS, STEP_AXIS
from lra.reports.labels import READ, TIMED, disturbed, labels_of, worded
from lra.runners.records import CELL_COLUMNS, COLUMNS, digest


def curves(
    rows: "Mapping[str, Sequence[Row]]", cells: Mapping[str, Mapping[str, Any]]
) -> list[list[str]]:
    """Return the cells that belong together: one curve of cost, all baselines, any other alone.

    Args:
        rows: of each cell.
        cells: what the store says of each; without an identity, the columns stand for it.
    """
    groups: dict[str, list[str]] = {}
    for cell, cell_rows in rows.items():
        timed = any(row.metric in TIMED and _given(row.length) for row in cell_rows)
        identity = cells.get(cell, {}).get("identity") or {
            column: str(getattr(cell_rows[0], column)) for column in CELL_COLUMNS
        }
        baseline = all(is_baseline(row.model) for row in cell_rows)
        name = group(cell, identity, baseline=baseline, curve=timed)
        groups.setdefault(name, []).append(cell)
    return list(groups.values())


Scalar = float | int | str | None
Stored: TypeAlias = Sequence[Mapping[str, Any]]
"""Rows as the store reads them, or with the words of a report: `lra.runners.store.rows_in`."""
Row = Any
"""A row with what its labels say (`lra.reports.labels.worded`), columns as attributes."""

_PARTS = ("factor", "context", "measure", "layer", "head", "within")
"""Labels that tell the final values of one cell apart, first in a key; `all` needs no word."""
_DESCRIBING = frozenset({
    "answers", "context_step", "disturbed", "drawn", "examples", "items", "keeps", "kernel", "keys",
    "layers", "mixer.kernel", "mixer.orthogonal", "option", "padding", "percentile", "reference",
    "regime", "sentence", "sequences", "split", "stages", "start", "target", "targets", "tokenizer",
    "tokens", "trained_tokens", "unwatched", "variant", "version", "weights", "windows",
    "tuned", "transferred", "study", "trial", "search", "search_name", "rung", "options", "metric",
    "better", "words", "marks",
})  # fmt: skip
"""Labels that tell no row of a cell from another: they describe it, or the key has them already."""
_TAG_LIMIT = 64
"""Characters that the server takes in a tag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """A table of W&B."""

    columns: list[str]
    rows: list[list[Scalar]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Everything about one W&B run."""

    id: str
    name: str
    group: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]
    history: list[dict[str, float]] = field(default_factory=list)
    summary: dict[str, Scalar] = field(default_factory=dict)
    tables: dict[str, TablePlan] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    """Paths of PNG files by name."""
    artifact: dict[str, list[str]] = field(default_factory=dict)
    """Artifact name: paths of its files."""

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON for the process that writes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "RunPlan":
        """Return what `as_json` was called on."""
        tables = {name: TablePlan(**table) for name, table in fields["tables"].items()}
        return cls(**{**fields, "tables": tables})

    def content(self) -> str:
        """Return a hash of everything in the run, files included."""
        paths = [*self.images.values(), *(p for files in self.artifact.values() for p in files)]
        files = {p: hashlib.sha256(Path(p).read_bytes()).hexdigest() for p in paths}
        return digest([json.loads(json.dumps(self.as_json())), files])


def run_id(*parts: object) -> str:
    """Return the stable id of a run: the same parts give the same run on any machine."""
    return digest([str(p) for p in parts], digits=16)


def plan_runs(
    rows: Stored,
    *,
    sweep: str,
    cells: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str] | None = None,
) -> list[RunPlan]:
    """Plan the runs of a sweep: one per cell, and one per curve of cost against length.

    The id of a run derives from the cells in it.

    Args:
        rows: of its cells.
        sweep: names the group.
        cells: what the store says of each cell: `identity`, `config`.
        names: of models, by cell; by default the model column.
    """
    parts = _by_cell(rows)
    return [
        _plan(
            [row for cell in sorted(members) for row in parts[cell]],
            run=run_id(sweep, *sorted(members)),
            sweep=sweep,
            cells=cells,
            names=names or {},
            title_suffixes={},
        )
        for members in curves(parts, cells)
    ]


def plan_run(
    rows: Stored,
    run: str,
    *,
    sweep: str,
    cells: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    title_suffixes: Mapping[str, str],
) -> RunPlan:
    """Plan one run of all these rows.

    Args:
        rows: of its cells.
        run: its id.
        sweep: names the group.
        cells: what the store says of each cell: `identity`, `config`.
        names: of models, by cell.
        title_suffixes: words that tell cells of the sweep apart, by cell, for the name of the run.
    """
    parts = _by_cell(rows)
    part = [row for cell in sorted(parts) for row in parts[cell]]
    return _plan(
        part, run=run, sweep=sweep, cells=cells, names=names, title_suffixes=title_suffixes
    )


def _by_cell(rows: Stored) -> dict[str, list[Row]]:
    """Return rows with what their labels say, by cell. ValueError where there are none."""
    if not rows:
        raise ValueError("no rows to plan runs of")
    told = [_by_stored_name(row) for row in rows]
    added = worded({name: [row[name] for row in told] for name in READ})
    parts: dict[str, list[Row]] = {}
    for row, values in zip(told, zip(*added.values(), strict=True), strict=True):
        more = dict(zip(added, values, strict=True))
        parts.setdefault(str(row["cell"]), []).append(SimpleNamespace(**{**row, **more}))
    return parts


def _by_stored_name(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its model as it is stored, not as a report tells it from others.

    Names of reports depend on what else they show.
    """
    return {**row, "model": row.get("family", row["model"])}


def contents(rows: Stored) -> dict[str, str]:
    """Return a hash of the rows of every cell."""
    by_cell: dict[str, list[Any]] = {}
    for row in rows:
        created = datetime.fromisoformat(row["created"]).astimezone(UTC).isoformat()
        line = [created if c == "created" else row[c] for c in COLUMNS if c != "model"]
        by_cell.setdefault(str(row["cell"]), []).append(line)
    return {
        cell: digest(json.loads(json.dumps(lines, default=str))) for cell, lines in by_cell.items()
    }


def _plan(
    part: Sequence[Row],
    *,
    run: str,
    sweep: str,
    cells: Mapping[str, Mapping[str, Any]],
    names: Mapping[str, str],
    title_suffixes: Mapping[str, str],
) -> RunPlan:
    first = {str(row.cell): row for row in reversed(part)}
    keys = list(dict.fromkeys(str(row.cell) for row in part))
    base = next((str(row.name) for row in part if not is_baseline(row.model)), BASELINES)
    described = describe(
        [_columns(first[key]) for key in keys],
        [cells[key]["config"] for key in keys if "config" in cells.get(key, {})],
        model=base if base == BASELINES else names.get(keys[0], base),
        sweep=sweep,
        cells=keys,
        title_suffix=title_suffixes.get(keys[0]),
    )
    at_lengths, others = _timed(part)
    lengths = _by_length(at_lengths)
    bad = [row for row in part if row.status != "ok"]
    summary: dict[str, Scalar] = _final(others, tasks=len({row.task for row in part}) > 1)
    for length, values in lengths.items():
        summary |= {named.at_length(length, k): v for k, v in values.items()}
    summary["status"] = "incomplete" if bad else "complete"
    failed = [row for row in bad if row.reference == ""]
    for row in failed:
        where = f"at_{_place(row)}_{row.mode}"
        summary[f"failed/{where}"] = f"{row.status}: {row.reason}"
    if failed_lengths := [int(row.length) for row in failed if _given(row.length)]:
        summary["failed_at_length"] = min(failed_lengths)
    shaken = [row for row in part if row.disturbed != ""]
    for row in shaken:
        where = f"at_{_place(row)}_{_key(row).replace('/', '_')}"
        summary[f"disturbed/{where}"] = str(row.disturbed)
    columns = ["mode", "length", "metric", "reference", "step", "status", "reason", "cell"]
    listed = [[_json_scalar(getattr(row, column)) for column in columns] for row in bad]
    history = [{LENGTH_AXIS: float(n)} | values for n, values in lengths.items()]
    return RunPlan(
        id=run,
        name=described.name,
        group=sweep,
        job_type=described.job_type,
        tags=described.tags,
        config=described.config | {"disturbed_cells": sorted({str(row.cell) for row in shaken})},
        history=history + _by_step(part),
        summary=summary,
        tables={"not_measured": TablePlan(columns=columns, rows=listed)} if listed else {},
    )


def _given(value: Any) -> bool:
    """Tell whether a column has a value here."""
    return _json_scalar(value) is not None


def _place(row: Row) -> str:
    return str(row.length) if _given(row.length) else "–"


def _columns(row: Row) -> dict[str, Any]:
    """Return the columns of a row's cell, in plain JSON."""
    return {column: _json_scalar(getattr(row, column)) for column in CELL_COLUMNS}


def _json_scalar(value: Any) -> Scalar:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and math.isinf(value):
        return str(value)  # an open interval; JSON has no word for it
    return value if isinstance(value, (int, float, str)) else str(value)


def _key(row: Any, metric: str = "") -> str:
    parts = "_".join(_label_parts(row.labels))
    key = named.cost(str(row.mode), metric or str(row.metric), str(row.reference))
    return key + (f"/{parts}" if parts else "")


def _label_parts(labels: Mapping[str, str]) -> list[str]:
    """Return what tells a row from others of its cell, as parts of a key."""
    usual = [k for k in _PARTS if labels.get(k, "all") != "all"]
    further = sorted(set(labels) - set(_PARTS) - _DESCRIBING)
    return [f"{key}_{labels[key]}" for key in (*usual, *further)]


def _put(values: dict[str, Any], key: str, value: Scalar) -> None:
    """Add a value under a key of its own: a second row with the same words is numbered."""
    number, free = 1, key
    while free in values:
        number += 1
        free = f"{key}_{number}"
    values[free] = value


def _timed(part: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the good rows of cells that are timed at a length, and those of others."""
    cells = {row.cell for row in part if row.metric in TIMED and _given(row.length)}
    good = [row for row in part if row.status == "ok" and not _given(row.step)]
    return [r for r in good if r.cell in cells], [r for r in good if r.cell not in cells]


def _by_length(timed: Sequence[Row]) -> dict[int, dict[str, float]]:
    """Return the values of timing cells by length."""
    lengths: dict[int, dict[str, float]] = {}
    for row in sorted(timed, key=lambda row: int(row.length)):
        at_length, value = lengths.setdefault(int(row.length), {}), float(row.value)
        _put(at_length, _key(row), value)
        if row.metric == "time_ratio":
            _put(at_length, _key(row, named.SPEEDUP), 1 / value)
    return lengths


def score_of(row: Any, *, tasks: bool = False) -> str:
    """Return the key of a score or of a final value; `tasks`: the run holds several."""
    parts = _label_parts(row.labels)
    if row.baseline:
        parts = [*([str(row.task)] if tasks else []), str(row.name), *parts]
    if row.metric in {"span", "occlusion_agreement"}:
        return "/".join((str(row.metric), *parts))
    if parts:
        split = f"{row.split}_" if row.split else ""
        return f"quality/{split}{row.metric}/{'_'.join(parts)}"
    if str(row.metric) == "train_loss":
        return named.LOSS
    if row.split:
        return named.score(str(row.split), str(row.metric))
    if "search" in row.labels:
        return named.searched(str(row.metric))
    return named.trained(str(row.metric))


def _by_step(part: Sequence[Row]) -> list[dict[str, float]]:
    """Return training curves: one line per optimiser step."""
    steps: dict[int, dict[str, float]] = {}
    good = [row for row in part if row.status == "ok" and _given(row.step)]
    for row in sorted(good, key=lambda row: int(row.step)):
        _put(steps.setdefault(int(row.step), {}), score_of(row), float(row.value))
    return [{STEP_AXIS: float(step)} | values for step, values in steps.items()]


def _final(rows: Sequence[Row], *, tasks: bool) -> dict[str, Scalar]:
    """Return the final values of cells that are not timed by length."""
    values: dict[str, Scalar] = {}
    for row in rows:
        _put(values, score_of(row, tasks=tasks), float(row.value))
    return values


def plan_report(rows: Stored, files: Sequence[Path], *, sweep: str, rows_folder: Path) -> RunPlan:
    """Plan the run that holds tables, figures and all rows; writes the rows below `rows_folder`.

    Its id derives from the cells that it shows: the report on another part is another run.
    """
    report_cells = sorted({str(row["cell"]) for row in rows})
    run = run_id(sweep, "report", *report_cells)
    rows_file = rows_folder / run / f"{file_name(sweep)}.jsonl"
    lines = [
        json.dumps({c: row[c] for c in COLUMNS}, sort_keys=True)
        for row in map(_by_stored_name, rows)
    ]
    rows_file.parent.mkdir(parents=True, exist_ok=True)
    rows_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    drawn = {p.stem for p in files if p.suffix == ".png"}
    tables = {
        f"tables/{p.stem}": _read_table(p)
        for p in files
        if p.suffix == ".csv" and p.stem not in drawn
    }
    artifact = {f"rows-{sweep}": [str(rows_file)]}
    if files:
        artifact[f"report-{sweep}"] = [str(p) for p in files]
    shaken = [disturbed({"labels": labels_of(row["labels"])}) for row in rows]
    return RunPlan(
        id=run,
        name=f"report/{sweep}",
        group=sweep,
        job_type="report",
        tags=[sweep[:_TAG_LIMIT]],
        config={"sweep": sweep, "cells": report_cells},
        summary={
            "rows": len(rows),
            "failed_rows": sum(row["status"] != "ok" for row in rows),
            "disturbed_rows": len([why for why in shaken if why]),
        },
        tables=tables,
        images={f"figures/{p.stem}": str(p) for p in files if p.suffix == ".png"},
        artifact=artifact,
    )


def file_name(sweep: str) -> str:
    """Return what a file or folder of a sweep is called."""
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in sweep).lstrip(".") or "sweep"


def _read_table(path: Path) -> TablePlan:
    import pandas as pd

    table = pd.read_csv(path)
    rows = [[_json_scalar(v) for v in line] for line in table.astype(object).to_numpy()]
    return TablePlan(columns=[str(c) for c in table.columns], rows=rows)

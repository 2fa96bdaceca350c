"""What a dashboard gets of stored rows, as plain data: a run for each cell or curve.

The cells of one curve, equal in all but length and mode, are one run, and so are all baselines.
Rows are mappings, as the store reads them: a cell, which plans its own, brings no pandas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lra.reports.dashboard import keys
from lra.reports.dashboard.describe import BASELINES, Description, describe, is_baseline
from lra.reports.labels import READ, RUN_MARKS, TIMED, columns_in_words
from lra.runners.records import CELL_COLUMNS, digest

Row = Any
"""A row with what its labels say (`lra.reports.labels.columns_in_words`), columns as attributes."""
_ALONG = ("length", "mode")
"""What differs along one curve."""
_PARTS = ("factor", "context", "measure", "layer", "head", "within")
"""Labels that tell the final values of one cell apart, first in a key; `all` needs no word."""
_DESCRIBING = frozenset({
    *RUN_MARKS, "answers", "context_step", "deviations", "disturbed", "drawn", "examples", "items",
    "keeps", "kernel", "keys", "layers", "mixer.kernel", "mixer.orthogonal", "option", "padding",
    "percentile", "reference", "regime", "sentence", "sequences", "split", "stages", "start",
    "target", "targets", "tokenizer", "tokens", "trained_tokens", "unwatched", "variant", "version",
    "weights", "windows", "tuned", "transferred", "study", "trial", "search", "search_name", "rung",
    "options", "metric", "better", "words", "marks",
})  # fmt: skip
"""Labels that tell no row of a cell from another: they describe it, or the key has them already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Description):
    """Everything about one run."""

    id: str
    history: list[dict[str, float]]
    summary: dict[str, float | str]


def run_id(*parts: object) -> str:
    """Return the stable id of a run: the same parts give the same run on any machine."""
    return digest([str(p) for p in parts], digits=16)


def plan_runs(
    rows: Sequence[Mapping[str, Any]], *, sweep: str, cells: Mapping[str, Mapping[str, Any]]
) -> list[RunPlan]:
    """Plan the runs of a sweep: one for each cell, and one for each curve of cost against length.

    The id of a run derives from the cells in it.

    Args:
        rows: of its cells, as the store reads them.
        sweep: names the group.
        cells: what is known of each cell: `identity`, `config`, the `model`'s name in reports, and
            `apart`, the words behind the run's name that tell it from the others of its sweep.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("no rows to plan runs of")
    added = columns_in_words({name: [row[name] for row in rows] for name in READ})
    by_cell: dict[str, list[Row]] = {}
    for row, values in zip(rows, zip(*added.values(), strict=True), strict=True):
        told = SimpleNamespace(**{**row, **dict(zip(added, values, strict=True))})
        by_cell.setdefault(str(row["cell"]), []).append(told)
    groups: dict[str, list[str]] = {}
    for cell, part in by_cell.items():
        groups.setdefault(_group(cell, part, cells.get(cell, {})), []).append(cell)
    return [
        _plan([row for cell in sorted(members) for row in by_cell[cell]], sweep, cells)
        for members in groups.values()
    ]


def _group(cell: str, part: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Return what is the same for the cells of one run."""
    if all(is_baseline(row.model) for row in part):
        return BASELINES
    if not any(row.metric in TIMED for row in part):
        return cell
    identity = about.get("identity") or {name: getattr(part[0], name) for name in CELL_COLUMNS}
    return digest({name: value for name, value in identity.items() if name not in _ALONG})


def _plan(part: Sequence[Row], sweep: str, cells: Mapping[str, Mapping[str, Any]]) -> RunPlan:
    first = {str(row.cell): row for row in reversed(part)}
    members = list(dict.fromkeys(str(row.cell) for row in part))
    about = [cells.get(cell, {}) for cell in members]
    base = next((str(row.name) for row in part if not is_baseline(row.model)), BASELINES)
    described = describe(
        [{name: getattr(first[cell], name) for name in CELL_COLUMNS} for cell in members],
        [each["config"] for each in about if "config" in each],
        model=base if base == BASELINES else about[0].get("model", base),
        sweep=sweep,
        cells=members,
        apart=about[0].get("apart"),
    )
    lengths, steps, final = _values(part)
    summary: dict[str, float | str] = {**final}
    for length, line in lengths.items():
        summary |= {keys.at_length(length, key): value for key, value in line.items()}
    bad = [row for row in part if row.status != "ok"]
    summary[keys.STATUS] = "incomplete" if bad else "complete"
    failed = [row for row in bad if row.reference == ""]
    for row in failed:
        summary[f"failed/at_{row.length}_{row.mode}"] = f"{row.status}: {row.reason}"
    if failed:
        summary["failed_at_length"] = min(int(row.length) for row in failed)
    shaken = [row for row in part if row.disturbed != ""]
    for row in shaken:
        where = f"at_{row.length}_{_cost(row).replace('/', '_')}"
        summary[f"disturbed/{where}"] = str(row.disturbed)
    return RunPlan(
        id=run_id(sweep, *members),
        name=described.name,
        job_type=described.job_type,
        tags=described.tags,
        config=described.config | {"disturbed_cells": sorted({str(row.cell) for row in shaken})},
        history=[
            *({keys.LENGTH_AXIS: float(place)} | values for place, values in lengths.items()),
            *({keys.STEP_AXIS: float(place)} | values for place, values in steps.items()),
        ],
        summary=summary,
    )


Lines = dict[int, dict[str, float]]


def _values(part: Sequence[Row]) -> tuple[Lines, Lines, dict[str, float]]:
    """Return the good values of a run: by length, by optimiser step, and the final ones."""
    timed = {row.cell for row in part if row.metric in TIMED}
    several = len({row.task for row in part}) > 1
    lengths: Lines = {}
    steps: Lines = {}
    final: dict[str, float] = {}
    for row in (row for row in part if row.status == "ok"):
        value = float(row.value)
        if row.step is not None:
            _put(steps.setdefault(int(row.step), {}), score_of(row), value)
        elif row.cell in timed:
            line = lengths.setdefault(int(row.length), {})
            _put(line, _cost(row), value)
            if row.metric == "time_ratio":
                _put(line, _cost(row, keys.SPEEDUP), 1 / value)
        else:
            _put(final, score_of(row, tasks=several), value)
    return dict(sorted(lengths.items())), dict(sorted(steps.items())), final


def _put(values: dict[str, float], key: str, value: float) -> None:
    """Add a value under a key of its own: a second row with the same words is numbered."""
    number, free = 1, key
    while free in values:
        number += 1
        free = f"{key}_{number}"
    values[free] = value


def _cost(row: Row, metric: str = "") -> str:
    parts = "_".join(_label_parts(row.labels))
    key = keys.cost(str(row.mode), metric or str(row.metric), str(row.reference))
    return key + (f"/{parts}" if parts else "")


def _label_parts(labels: Mapping[str, str]) -> list[str]:
    """Return what tells a row from others of its cell, as parts of a key."""
    usual = [key for key in _PARTS if labels.get(key, "all") != "all"]
    further = sorted({*labels} - {*_PARTS} - _DESCRIBING)
    return [f"{key}_{labels[key]}" for key in (*usual, *further)]


def score_of(row: Row, *, tasks: bool = False) -> str:
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
        return keys.LOSS
    if row.split:
        return keys.score(str(row.split), str(row.metric))
    if "search" in row.labels:
        return keys.search_key(str(row.metric))
    return keys.training_key(str(row.metric))

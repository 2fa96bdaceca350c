"""Plan the runs of a dashboard from stored rows, as plain data.

Runs of lra that differ only in length and mode become one run of the dashboard, a curve. All
baselines become one run, and any other run of lra becomes one. Rows are plain mappings here, so
that a process without pandas can plan its run.
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
"""Columns that differ along one curve."""
_PARTS = ("factor", "context", "measure", "layer", "head", "within")
"""Labels that distinguish final values of one run; they come first in a key, except `all`."""
_DESCRIBING = frozenset({
    *RUN_MARKS, "answers", "context_step", "deviations", "disturbed", "drawn", "examples", "items",
    "keeps", "kernel", "keys", "layers", "mixer.kernel", "mixer.orthogonal", "option", "padding",
    "percentile", "reference", "regime", "sentence", "sequences", "split", "stages", "start",
    "stop_at", "target", "targets", "threshold", "tokenizer", "tokens", "trained_tokens",
    "unwatched", "variant", "version", "weights", "windows", "tuned", "transferred", "study",
    "trial", "search", "search_name", "rung", "options", "metric", "better", "words", "marks",
    "kernels", "forms",
})  # fmt: skip
"""Labels that are no part of a key: they describe a row, or the key has them in another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Description):
    """A run of a dashboard: its description, its curves and its final values."""

    id: str
    history: list[dict[str, float]]
    summary: dict[str, float | str]


def run_id(*parts: object) -> str:
    """Return the stable id of a run: the same parts give the same run on any machine."""
    return digest([str(p) for p in parts], digits=16)


def plan_runs(
    rows: Sequence[Mapping[str, Any]], *, sweep: str, cells: Mapping[str, Mapping[str, Any]]
) -> list[RunPlan]:
    """Return the plans of the runs of a sweep; the id of a plan depends on its runs of lra.

    Args:
        rows: the rows of all runs of lra, as the store reads them.
        sweep: the name of the group.
        cells: for each run of lra, by key, what is known of it: `identity`, `config`, `model` (the
            name in reports) and `apart` (words that distinguish it from others of its sweep).

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("a dashboard needs at least one row, but there are no rows")
    added = columns_in_words({name: [row[name] for row in rows] for name in READ})
    by_cell: dict[str, list[Row]] = {}
    for row, values in zip(rows, zip(*added.values(), strict=True), strict=True):
        extended = SimpleNamespace(**{**row, **dict(zip(added, values, strict=True))})
        by_cell.setdefault(str(row["cell"]), []).append(extended)
    groups: dict[str, list[str]] = {}
    for cell, part in by_cell.items():
        groups.setdefault(_group_key(cell, part, cells.get(cell, {})), []).append(cell)
    return [
        _plan_run([row for cell in sorted(members) for row in by_cell[cell]], sweep, cells)
        for members in groups.values()
    ]


def _group_key(cell: str, part: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Return a key that is the same for all runs of lra in one run of the dashboard."""
    if all(is_baseline(row.model) for row in part):
        return BASELINES
    if not any(row.metric in TIMED for row in part):
        return cell
    identity = about.get("identity") or {name: getattr(part[0], name) for name in CELL_COLUMNS}
    return digest({name: value for name, value in identity.items() if name not in _ALONG})


def _plan_run(part: Sequence[Row], sweep: str, cells: Mapping[str, Mapping[str, Any]]) -> RunPlan:
    """Return the plan of one run of the dashboard from the rows of its runs of lra."""
    first_rows = {str(row.cell): row for row in reversed(part)}  # of equal keys, the last one stays
    members = list(dict.fromkeys(str(row.cell) for row in part))
    about = [cells.get(cell, {}) for cell in members]
    base = next((str(row.name) for row in part if not is_baseline(row.model)), BASELINES)
    described = describe(
        [{name: getattr(first_rows[cell], name) for name in CELL_COLUMNS} for cell in members],
        [known["config"] for known in about if "config" in known],
        model=base if base == BASELINES else about[0].get("model", base),
        sweep=sweep,
        cells=members,
        apart=about[0].get("apart"),
    )
    lengths, steps, final = _split_values(part)
    summary: dict[str, float | str] = {**final}
    for length, line in lengths.items():
        summary |= {keys.at_length(length, key): value for key, value in line.items()}
    failures = [row for row in part if row.status != "ok"]
    summary[keys.STATUS] = "incomplete" if failures else "complete"
    failures_of_model = [row for row in failures if row.reference == ""]
    for row in failures_of_model:
        summary[f"failed/at_{row.length}_{row.mode}"] = f"{row.status}: {row.reason}"
    if failures_of_model:
        summary["failed_at_length"] = min(int(row.length) for row in failures_of_model)
    disturbed = [row for row in part if row.disturbed != ""]
    for row in disturbed:
        place = f"at_{row.length}_{_cost_key(row).replace('/', '_')}"
        summary[f"disturbed/{place}"] = str(row.disturbed)
    return RunPlan(
        id=run_id(sweep, *members),
        name=described.name,
        job_type=described.job_type,
        tags=described.tags,
        config=described.config | {"disturbed_cells": sorted({str(r.cell) for r in disturbed})},
        history=[
            *({keys.LENGTH_AXIS: float(place)} | values for place, values in lengths.items()),
            *({keys.STEP_AXIS: float(place)} | values for place, values in steps.items()),
        ],
        summary=summary,
    )


Lines = dict[int, dict[str, float]]
"""Values by key, at each length or optimiser step."""


def _split_values(part: Sequence[Row]) -> tuple[Lines, Lines, dict[str, float]]:
    """Return the values of a run by length, by optimiser step, and its final values."""
    timed = {row.cell for row in part if row.metric in TIMED}
    several_tasks = len({row.task for row in part}) > 1
    lengths: Lines = {}
    steps: Lines = {}
    final: dict[str, float] = {}
    for row in (row for row in part if row.status == "ok"):
        value = float(row.value)
        if row.step is not None:
            _put(steps.setdefault(int(row.step), {}), score_of(row), value)
        elif row.cell in timed:
            line = lengths.setdefault(int(row.length), {})
            _put(line, _cost_key(row), value)
            if row.metric == "time_ratio":
                _put(line, _cost_key(row, keys.SPEEDUP), 1 / value)
        else:
            _put(final, score_of(row, tasks=several_tasks), value)
    return dict(sorted(lengths.items())), dict(sorted(steps.items())), final


def _put(values: dict[str, float], key: str, value: float) -> None:
    """Add a value under a key; if the key is taken, under the key with the next free number."""
    number, free_key = 1, key
    while free_key in values:
        number += 1
        free_key = f"{key}_{number}"
    values[free_key] = value


def _cost_key(row: Row, metric: str = "") -> str:
    """Return the key of a cost, for the metric of the row or another one."""
    parts = "_".join(_label_parts(row.labels))
    key = keys.cost(str(row.mode), metric or str(row.metric), str(row.reference))
    return key + (f"/{parts}" if parts else "")


def _label_parts(labels: Mapping[str, str]) -> list[str]:
    """Return the labels that distinguish a row from others of its run, as parts of a key."""
    usual = [key for key in _PARTS if labels.get(key, "all") != "all"]
    further = sorted({*labels} - {*_PARTS} - _DESCRIBING)
    return [f"{key}_{labels[key]}" for key in (*usual, *further)]


def score_of(row: Row, *, tasks: bool = False) -> str:
    """Return the key of a score or a final value; `tasks`: whether the run has several tasks."""
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

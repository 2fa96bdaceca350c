"""What stored cells took, and what one like them may take."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from lra.composition.runner_class import runner_class
from lra.errors import ConfigError, UnknownName
from lra.runners.records import Cell
from lra.runners.storage.formats import BadStore, read_bytes, read_cell, read_object
from lra.runners.store import Store
from lra.sweep.sweep import PlannedCell

MOST_READ = 150
"""Stored cells to look at: a tenth of a second."""
FEWEST_STEPS = 20
"""Of a stored training that more steps are reckoned from: fewer tell of how a cell begins."""
MOST_SCALED = 20.0
"""Times the work of a stored cell, or a part of it, that what it took is scaled to."""
ENDED = frozenset({b'"status":"ok"'})
"""What a row with a value has."""


class Past(NamedTuple):
    """A stored cell, and what it took."""

    columns: Mapping[str, Any]
    config: Mapping[str, Any]
    took_s: float
    shares: Mapping[str, float] = MappingProxyType({})
    """Parts of references in it: see `lra.sweep.planned_cells.reference_shares`."""


class Guess(NamedTuple):
    """The estimated time of one cell."""

    seconds: float
    alike: bool
    """From cells of the same model, task, length and size; False: scaled from others."""


def guess(cell: Cell, past: Sequence[Past]) -> Guess | None:
    """Return what a cell may take, from the nearest of those that ran; None where none is near."""
    wanted_work, wanted_size = _work(cell.columns, cell.config), _alike_key(cell.config)
    near: dict[tuple[float, ...], list[float]] = {}
    for other in past:
        if any(other.columns.get(n) != cell.columns[n] for n in ("runner", "mode", "device")):
            continue
        work, size = _work(other.columns, other.config), _alike_key(other.config)
        if not work or not wanted_work or not 1 / MOST_SCALED <= wanted_work / work <= MOST_SCALED:
            continue
        if wanted_work > work and _config_number(other.config, "optim", "steps") < FEWEST_STEPS:
            continue
        distance = (
            float(other.columns.get("model") != cell.columns["model"]),
            abs(math.log2(wanted_work / work)),
            float(size != wanted_size),
            float(other.columns.get("task") != cell.columns["task"]),
            float(other.columns.get("threads") != cell.columns["threads"]),
        )
        near.setdefault(distance, []).append(other.took_s * wanted_work / work)
    if not near:
        return None
    best = min(near)
    return Guess(median(near[best]), alike=not any(best))


def _work(columns: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Return a number that the time of cells of one runner grows with, as the first guess."""
    length = _config_number(columns, "length")
    try:
        kind = runner_class({"name": columns.get("runner")})
    except (UnknownName, ConfigError):
        return 0.0
    size = _config_number(config, "model", "backbone", "depth") * _config_number(
        config, "model", "backbone", "width"
    )
    if kind.trains:
        all_steps = _config_number(config, "optim", "steps")
        until = (config.get("runner") or {}).get("until_step") or all_steps
        steps = min(all_steps, until) * _config_number(config, "optim", "batch_size")
        return steps * length * size
    if kind.by_length:
        return max(length, _config_number(config, "hardware", "token_budget")) * size
    if not kind.models:
        return length
    examples = _config_number(config, "runner", "examples")
    return length * size * examples


def _config_number(node: Any, *path: str) -> float:
    """Return a number of a configuration; 1 where there is none."""
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    if isinstance(node, bool) or not isinstance(node, int | float):
        return 1.0
    return float(node) if 0 < node < 1e18 else 1.0


def _alike_key(config: Mapping[str, Any]) -> str:
    """Return what else in a configuration makes cells alike: the model, the task, the runner."""
    parts = [config.get(name) for name in ("model", "task", "runner", "optim")]
    steering = ("seed", "data_seed", "dry_run", "shard", "retry", "timeout_s", "sweep_timeout_s",
                "baselines", "peak_learning_rate")  # fmt: skip
    sized = [
        {k: v for k, v in part.items() if k not in steering}
        for part in parts
        if isinstance(part, Mapping)
    ]
    return repr(sized)


def past_cells(waiting: Sequence[PlannedCell], store: Store, sweep: str) -> Iterator[Past]:
    """Yield what the likeliest cells took: the same with other code, the sweep's, any others."""
    step = max(1, len(waiting) // MOST_READ)
    searches: list[Callable[[], Iterable[Path]]] = [
        lambda: (store.cell_folder(planned.cell.key) for planned in waiting[::step]),
        lambda: (store.cell_folder(path.name) for path in _inside(store.root / "sweeps" / sweep)),
        lambda: (cell for group in _inside(store.root / "cells") for cell in _inside(group)),
    ]
    seen: set[Path] = set()
    for search in searches:
        for folder in islice(search(), MOST_READ):
            if folder not in seen:
                seen.add(folder)
                yield from _past_cells(folder)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _past_cells(folder: Path) -> Iterator[Past]:
    """Yield what a cell took, where that is on record. What cannot be read counts for nothing."""
    newest = max(folder.glob("environment-*.json"), key=lambda path: path.name, default=None)
    if newest is None:
        return
    try:
        about = read_object(newest)
        took, shares = about.get("took_s"), about.get("reference_shares", {})
        if isinstance(took, bool) or not isinstance(took, int | float) or not 0 < took < 1e10:
            return
        if not isinstance(shares, dict) or not {*map(type, shares.values())} <= {int, float}:
            return
        cell = read_cell(folder)
        rows = folder / newest.name.replace("environment-", "rows-").replace(".json", ".jsonl")
        if ENDED.isdisjoint(read_bytes(rows).split(b",")):
            return  # it failed, sooner than it would have ended
        yield Past(cell["columns"], cell["config"], float(took), shares)
    except BadStore:
        return

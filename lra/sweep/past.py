"""Reads the time that stored cells took, and guesses that of a similar cell."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, NamedTuple

from lra.composition.runner_class import runner_class
from lra.errors import ConfigError, UnknownName
from lra.runners.measurement.hardware import KernelChoice
from lra.runners.records import Cell
from lra.runners.storage.formats import BadStore, read_bytes, read_cell, read_object
from lra.runners.store import Store
from lra.sweep.sweep import PlannedCell

MOST_READ = 150
"""Stored cells that are read for each kind of likely ones, which takes a tenth of a second."""
FEWEST_STEPS = 20
"""A shorter stored training gives no guess for a longer one: its start took too much of it."""
MOST_SCALED = 20.0
"""A stored time is scaled to at most so many times its work, and to at least this fraction."""
ENDED = frozenset({b'"status":"ok"'})
"""What the JSON line of a row with a value contains."""


class Past(NamedTuple):
    """A stored cell and the seconds that it took."""

    columns: Mapping[str, Any]
    config: Mapping[str, Any]
    took_s: float
    shares: Mapping[str, float] = MappingProxyType({})
    """By reference, the part of its timing: see `lra.sweep.planned_cells.reference_shares`."""


class Guess(NamedTuple):
    """The estimated time of one cell."""

    seconds: float
    alike: bool
    """Whether stored cells have the same model, task, length and size; else it is scaled."""


def guess(cell: Cell, past: Sequence[Past]) -> Guess | None:
    """Return the time of a cell, guessed from the most similar stored ones; None: none is similar.

    It is the median of their times, each multiplied by the ratio of the cell's work to theirs.
    """
    wanted_work, wanted_key = _measure_work(cell.columns, cell.config), _alike_key(cell.config)
    by_distance: dict[tuple[float, ...], list[float]] = {}
    for stored in past:
        if any(stored.columns.get(n) != cell.columns[n] for n in ("runner", "mode", "device")):
            continue
        if _kernels(stored.config) != _kernels(cell.config):
            continue  # a public kernel takes another time than our operations
        work, key = _measure_work(stored.columns, stored.config), _alike_key(stored.config)
        if not work or not wanted_work or not 1 / MOST_SCALED <= wanted_work / work <= MOST_SCALED:
            continue
        if wanted_work > work and _config_number(stored.config, "optim", "steps") < FEWEST_STEPS:
            continue
        distance = (  # the most important difference first, as tuples are compared
            float(stored.columns.get("model") != cell.columns["model"]),
            abs(math.log2(wanted_work / work)),
            float(key != wanted_key),
            float(stored.columns.get("task") != cell.columns["task"]),
            float(stored.columns.get("threads") != cell.columns["threads"]),
        )
        by_distance.setdefault(distance, []).append(stored.took_s * wanted_work / work)
    if not by_distance:
        return None
    least = min(by_distance)
    return Guess(median(by_distance[least]), alike=not any(least))


def _measure_work(columns: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Return a number to which the time of cells of one runner is roughly proportional.

    For a training it is steps x batch x length x depth x width, for a timed pass tokens x depth x
    width, for baselines the length; 0: the runner is not known.
    """
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


def _kernels(config: Mapping[str, Any]) -> str:
    """Return the choice of kernels in a configuration; older ones have none."""
    return str((config.get("hardware") or {}).get("kernels", KernelChoice.own))


def _config_number(node: Any, *path: str) -> float:
    """Return the number at a path of keys in a configuration; 1 if none is set there."""
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    if isinstance(node, bool) or not isinstance(node, int | float):
        return 1.0
    return float(node) if 0 < node < 1e18 else 1.0


def _alike_key(config: Mapping[str, Any]) -> str:
    """Return the options of model, task, runner and optimiser as text: equal for similar cells."""
    parts = [config.get(name) for name in ("model", "task", "runner", "optim")]
    ignored = ("seed", "data_seed", "dry_run", "shard", "retry", "timeout_s", "sweep_timeout_s",
                "baselines", "peak_learning_rate")  # fmt: skip
    compared = [
        {k: v for k, v in part.items() if k not in ignored}
        for part in parts
        if isinstance(part, Mapping)
    ]
    return repr(compared)


def past_cells(waiting: Sequence[PlannedCell], store: Store, sweep: str) -> Iterator[Past]:
    """Yield stored cells with their times: those in `waiting`, those of the sweep, then others."""
    step = max(1, len(waiting) // MOST_READ)  # every how many-th of the waiting cells is read
    searches: list[Callable[[], Iterable[Path]]] = [
        lambda: (store.cell_folder(planned.cell.key) for planned in waiting[::step]),
        lambda: (store.cell_folder(path.name) for path in _inside(store.root / "sweeps" / sweep)),
        lambda: (cell for group in _inside(store.root / "cells") for cell in _inside(group)),
    ]
    read_folders: set[Path] = set()
    for search in searches:
        for folder in islice(search(), MOST_READ):
            if folder not in read_folders:
                read_folders.add(folder)
                yield from _read_past(folder)


def _inside(folder: Path) -> list[Path]:
    """Return the entries of a folder; none if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read_past(folder: Path) -> Iterator[Past]:
    """Yield the stored cell in a folder, if it succeeded and its time is stored and readable."""
    newest = max(folder.glob("environment-*.json"), key=lambda path: path.name, default=None)
    if newest is None:
        return
    try:
        environment = read_object(newest)
        took, shares = environment.get("took_s"), environment.get("reference_shares", {})
        if isinstance(took, bool) or not isinstance(took, int | float) or not 0 < took < 1e10:
            return
        if not isinstance(shares, dict) or not {*map(type, shares.values())} <= {int, float}:
            return
        cell = read_cell(folder)
        rows = folder / newest.name.replace("environment-", "rows-").replace(".json", ".jsonl")
        if ENDED.isdisjoint(read_bytes(rows).split(b",")):
            return  # it failed, so that its time says little
        yield Past(cell["columns"], cell["config"], float(took), shares)
    except BadStore:
        return

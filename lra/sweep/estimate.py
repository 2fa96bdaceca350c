"""How long cells will take, from what cells like them took before; or that it is not known."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from lra.configuration import ConfigError
from lra.runner_class import runner_class
from lra.suggest import UnknownName
from lra.sweep.planned import Planned
from runners.records import Cell
from runners.store import Store

MOST_READ = 150
"""Stored cells to look at: a tenth of a second."""
MOST_KINDS = 300
"""Kinds of waiting cells that are estimated one by one; of more, a sample."""
MINUTE, HOUR, DAY = 60, 3600, 86_400
NARROWING = (
    "runner=", "model=", "task=", "seed=", "logger=", "results=", "sweep=", "runner.",
)  # fmt: skip
"""Words that leave a preset what it is."""


class Past(NamedTuple):
    """A stored cell, and what it took."""

    columns: Mapping[str, Any]
    config: Mapping[str, Any]
    took_s: float


class Guess(NamedTuple):
    """The estimated time of one cell."""

    seconds: float
    alike: bool
    """From cells of the same model, task, length and size; False: scaled from others."""


def announcement(waiting: Sequence[Planned], store: Store, sweep: str) -> str:
    """Return one line: how many cells there are to run, and how long they will take."""
    many = "1 cell" if len(waiting) == 1 else f"{len(waiting):,} cells"
    guesses = _guesses(waiting, [*_past(waiting, store, sweep)])
    known = [index for index, guess in enumerate(guesses) if guess is not None]
    if not known:
        takes = _preset(waiting)
        if takes:
            return f"{many} to run; the whole preset takes {takes}"
        return f"{many} to run; how long is not known until the first one is through"
    seconds = _elapsed([waiting[index] for index in known], [guesses[index] for index in known])
    alike = all(guesses[index].alike for index in known)  # type: ignore[union-attr]
    source = "from stored cells like these" if alike else "scaled from other cells of this machine"
    about = f"{'about' if alike else 'very roughly'} {spelt(seconds)} ({source})"
    rest = len(waiting) - len(known)
    if not rest:
        return f"{many} to run, {about}"
    return f"{many} to run: {len(known):,} take {about}, of {rest:,} it is not known"


def _preset(waiting: Sequence[Planned]) -> str | None:
    """Return what a preset says of itself, where nothing but the preset was asked for."""
    for planned in waiting:
        words = [word for word in planned.cell.overrides if "+experiment=" not in word]
        narrowing = all(word.startswith(NARROWING) for word in words)
        if len(words) == len(planned.cell.overrides) or not narrowing:
            return None
    about = waiting[0].run.config.get("about")
    takes = about.get("takes") if isinstance(about, Mapping) else None
    return takes if isinstance(takes, str) else None


def spelt(seconds: float) -> str:
    """Return a length of time as one says it: 40 s, 3 min, 2 h 10 min, 3 days."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * MINUTE:
        return f"{round(seconds / MINUTE)} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(round(seconds / MINUTE / 10) * 10, 60)
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{seconds / DAY:.0f} days"


def _elapsed(cells: Sequence[Planned], guesses: Sequence[Guess | None]) -> float:
    """Return the time of all: each kind by itself, some of its cells side by side."""
    total = 0.0
    for name in {str(planned.cell.columns["runner"]): None for planned in cells}:
        taken = [
            (planned, guess.seconds)
            for planned, guess in zip(cells, guesses, strict=True)
            if guess is not None and planned.cell.columns["runner"] == name
        ]
        if taken:
            lanes = 1 if taken[0][0].run.runner.timed else taken[0][0].run.hardware.side_by_side()
            seconds = [each for _, each in taken]
            total += max(*seconds, sum(seconds) / lanes)
    return total


def _guesses(waiting: Sequence[Planned], past: Sequence[Past]) -> list[Guess | None]:
    known: dict[str, Guess | None] = {}
    found: list[Guess | None] = []
    for planned in waiting:
        name = _kind(planned.cell)
        if name not in known:
            full = len(known) >= MOST_KINDS
            known[name] = None if full else guess(planned.cell, past)
        found.append(known[name])
    return found


def _kind(cell: Cell) -> str:
    columns = {name: value for name, value in cell.columns.items() if name != "seed"}
    return f"{columns} {_work(cell.columns, cell.config)} {_size(cell.config)}"


def guess(cell: Cell, past: Sequence[Past]) -> Guess | None:
    """Return what a cell may take, from the nearest of those that ran; None where none did."""
    own_work, own_size = _work(cell.columns, cell.config), _size(cell.config)
    near: dict[tuple[float, ...], list[float]] = {}
    for each in past:
        if any(each.columns.get(n) != cell.columns[n] for n in ("runner", "mode", "device")):
            continue
        work, size = _work(each.columns, each.config), _size(each.config)
        if not work or not own_work:
            continue
        distance = (
            float(each.columns.get("model") != cell.columns["model"]),
            abs(math.log2(own_work / work)),
            float(size != own_size),
            float(each.columns.get("task") != cell.columns["task"]),
            float(each.columns.get("threads") != cell.columns["threads"]),
        )
        near.setdefault(distance, []).append(each.took_s * own_work / work)
    if not near:
        return None
    best = min(near)
    return Guess(median(near[best]), alike=not any(best))


def _work(columns: Mapping[str, Any], config: Mapping[str, Any]) -> float:
    """Return a number that the time of cells of one runner grows with, as the first guess."""
    length = _number(columns, "length")
    try:
        kind = runner_class({"name": columns.get("runner")})
    except (UnknownName, ConfigError):
        return 0.0
    size = _number(config, "model", "backbone", "depth") * _number(
        config, "model", "backbone", "width"
    )
    if kind.trains:
        steps = _number(config, "optim", "steps") * _number(config, "optim", "batch_size")
        return steps * length * size
    if kind.by_length:
        return max(length, _number(config, "hardware", "token_budget")) * size
    if not kind.models:
        return length
    examples = _number(config, "runner", "examples")
    return length * size * examples


def _number(node: Any, *path: str) -> float:
    """Return a number of a configuration; 1 where there is none."""
    for name in path:
        node = node.get(name) if isinstance(node, Mapping) else None
    if isinstance(node, bool) or not isinstance(node, int | float):
        return 1.0
    return float(node) if 0 < node < 1e18 else 1.0


def _size(config: Mapping[str, Any]) -> str:
    """Return what else in a configuration makes cells alike: the model, the task, the runner."""
    parts = [config.get(name) for name in ("model", "task", "runner", "optim")]
    steering = ("seed", "data_seed", "dry_run", "shard", "retry", "timeout_s", "peak_learning_rate")
    sized = [
        {k: v for k, v in part.items() if k not in steering}
        for part in parts
        if isinstance(part, Mapping)
    ]
    return repr(sized)


def _past(waiting: Sequence[Planned], store: Store, sweep: str) -> Iterator[Past]:
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
                yield from _read(folder)


def _inside(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read(folder: Path) -> Iterator[Past]:
    """Yield what a cell took, where that is on record. What cannot be read counts for nothing."""
    newest = max(folder.glob("environment-*.json"), key=lambda path: path.name, default=None)
    if newest is None:
        return
    try:
        took = json.loads(newest.read_bytes()).get("took_s")
        if isinstance(took, bool) or not isinstance(took, int | float) or not 0 < took < 1e10:
            return
        cell = json.loads((folder / "cell.json").read_bytes())
        yield Past(dict(cell["columns"]), dict(cell["config"]), float(took))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return

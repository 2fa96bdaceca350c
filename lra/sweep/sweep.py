"""A sweep: its cells as they are planned, as reports and dashboards see them, and their ends."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lra.composition.run import Control, Logger, Run
from lra.runners.records import Cell, Status
from lra.runners.store import Store

WEIGHTS_KEY = "runner.weights"
"""Names a stored training to start from."""
WEIGHTS = "weights"
"""Of the cell among those that a run starts from."""


@dataclass(slots=True)
class PlannedCell:
    """A cell and the run that it belongs to."""

    cell: Cell
    run: Run
    trainings: Mapping[str, Cell] = field(default_factory=dict)
    """Cells whose weights it starts from."""
    again: bool = False
    """Complete, but done once more for what is gone of it: the weights of a training."""
    beside: bool = False
    """Baselines that no word of the command names: a training has brought them along."""
    no_data: str | None = None
    """Why the data of its task cannot be had; set once somebody has tried to prepare them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCells:
    """The cells of a sweep, as reports and dashboards see them."""

    name: str
    root: Path
    """The results folder."""
    logger: Logger
    cells: Sequence[Cell]
    titles: Mapping[str, str]
    """What cells are called, by key: also those that other shards run."""

    @property
    def store(self) -> Store:
        """The result store."""
        return Store(self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(SweepCells):
    """All cells that one command line asks for, in the order in which they run."""

    control: Control
    planned: Sequence[PlannedCell]
    """Its cells, each with its run."""
    of_words: Mapping[tuple[str, ...], str]
    """The key of the (first) cell that words lead to."""


@dataclass(slots=True)
class SweepOutcome:
    """What became of the cells that a process was to run."""

    endings: dict[str, Status] = field(default_factory=dict)
    """Of cells that have rows now, by key."""
    stopped_by: signal.Signals | None = None
    """The signal that ended it."""
    refused: str | None = None
    """What the storage could not take, and the way out: nothing more was run."""
    may_pass: bool = False
    """Whether that may be over soon without anybody's doing."""
    stopped: dict[str, str] = field(default_factory=dict)
    """Cells that somebody else, or the sweep's own limit of time, stopped, by key, and how: they
    have no rows."""
    late: bool = False
    """The sweep's limit of time is over: nothing more was run."""

    def after(self, before: "SweepOutcome") -> "SweepOutcome":
        """Return this with what became of cells before it."""
        endings, stopped = {**before.endings, **self.endings}, {**before.stopped, **self.stopped}
        return replace(self, endings=endings, stopped=stopped)

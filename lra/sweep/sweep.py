"""A sweep: its planned cells, what reports and dashboards need of them, and how they ended."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lra.composition.run import Control, Logger, Run
from lra.runners.records import Cell, Status
from lra.runners.store import Store

WEIGHTS_KEY = "runner.weights"
"""The option that names a stored training to start from."""
WEIGHTS = "weights"
"""Name of this training among those that a run starts from."""


@dataclass(slots=True)
class PlannedCell:
    """A cell and the run that it belongs to."""

    cell: Cell
    run: Run
    trainings: Mapping[str, Cell] = field(default_factory=dict)
    """Cells whose weights it starts from."""
    again: bool = False
    """Whether it is a complete training that is repeated because its weights are gone."""
    beside: bool = False
    """Whether it has baselines that the command does not name, and that a training needs."""
    no_data: str | None = None
    """Why the data of its task are missing, set after a failed attempt to prepare them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCells:
    """The part of a sweep that reports and dashboards need."""

    name: str
    root: Path
    """The results folder."""
    logger: Logger
    cells: Sequence[Cell]
    titles: Mapping[str, str]
    """Names of cells, by key, including those that other shards run."""

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
    """By the arguments of one combination: the key of its first cell."""


@dataclass(slots=True)
class SweepOutcome:
    """How the cells ended that a process was to run."""

    endings: dict[str, Status] = field(default_factory=dict)
    """The status of each cell that has rows now, by key."""
    stopped_by: signal.Signals | None = None
    """The signal that stopped the work; None: none did."""
    refused: str | None = None
    """Why the storage refused to write, and what to do; it ended the work. None: it did not."""
    may_pass: bool = False
    """Whether the storage may work again soon by itself."""
    stopped: dict[str, str] = field(default_factory=dict)
    """By key of a cell without rows: why another program, or the sweep's time limit, stopped it."""
    late: bool = False
    """Whether the time limit of the sweep ended the work."""

    def after(self, before: "SweepOutcome") -> "SweepOutcome":
        """Return this outcome, joined with that of an earlier round of the same sweep."""
        endings, stopped = {**before.endings, **self.endings}, {**before.stopped, **self.stopped}
        return replace(self, endings=endings, stopped=stopped)

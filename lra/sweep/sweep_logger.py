"""The dashboard of a sweep: where its runs go, and which cells write a run of their own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from lra.composition.run import Logger, LoggerMode
from lra.composition.runner_class import runner_of
from lra.machine.probes import wandb_account
from lra.reports.dashboard.runs import Kind, RunTarget
from lra.runners.records import Cell
from lra.sweep.cell_logger import LoggedCell
from lra.sweep.sweep import SweepCells
from lra.sweep.titles import title


class SweepLogger:
    """What the cells of a sweep have to know of its dashboard."""

    def __init__(self, sweep: SweepCells, agent: str = "") -> None:
        """Take a sweep.

        Args:
            sweep: what is run.
            agent: the run that an agent of W&B has opened for its one cell; "": there is none.
        """
        self.sweep, self.agent = sweep, agent
        self.unreachable = ""
        """Why the server does not get the runs that it was to have."""
        self._tried = False

    @property
    def target(self) -> RunTarget | None:
        """Where runs go; None: nowhere."""
        sweep, logger = self.sweep, self.sweep.logger
        if logger.mode is LoggerMode.disabled:
            return None
        kind = "offline" if self.unreachable else cast(Kind, str(logger.mode))
        return RunTarget(
            kind=kind,
            folder=dashboard_folder(sweep.root, logger),
            sweep=sweep.name,
            project=logger.project,
            entity=logger.entity,
            agent=self.agent,
        )

    def check(self) -> str:
        """Try the server, once; return what a person should know, or ""."""
        target = self.target
        if self._tried or target is None or target.kind != "online":
            return ""
        self._tried = True
        account = wandb_account()
        if account.works:
            return ""
        self.unreachable = account.detail
        return f"W&B: {account.detail.rstrip('.')}; its runs go into {target.folder}"

    def of_cell(self, cell: Cell, resumes: Callable[[Cell], bool]) -> LoggedCell | None:
        """Return what a cell needs to write its run; None where it writes none."""
        target = self.target
        if target is None or not writes_its_run(cell):
            return None
        words = apart(self.sweep.titles, cell)
        return LoggedCell(cell=cell, target=target, apart=words, resumed=resumes(cell))


def writes_its_run(cell: Cell) -> bool:
    """Tell whether a cell has a run of its own: a training whose time nobody measures.

    The others get theirs from their rows, when the sweep ends.
    """
    kind = runner_of(cell)
    return kind.trains and not kind.timed


def apart(titles: Mapping[str, str], cell: Cell) -> str | None:
    """Return the words that tell a cell from the others of its sweep, behind its title."""
    short_title, whole = title(cell), titles.get(cell.key, "")
    return whole.removeprefix(short_title) if whole.startswith(short_title) else None


def dashboard_folder(root: Path, logger: Logger) -> Path:
    """Return where a logger writes, below the results."""
    name = "tensorboard" if logger.mode is LoggerMode.tensorboard else "wandb"
    return root.resolve() / name


def name_of(logger: Logger) -> str:
    """Return what people call a logger's dashboard."""
    return "TensorBoard" if logger.mode is LoggerMode.tensorboard else "W&B"

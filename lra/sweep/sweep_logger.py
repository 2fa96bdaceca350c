"""The dashboard of a sweep: where its runs go, and which cells write a run by themselves."""

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
    """Knows where the cells of a sweep write their runs, and whether the server can be reached."""

    def __init__(self, sweep: SweepCells, agent: str = "") -> None:
        """Take a sweep, and the id of the run that an agent of W&B opened for its only cell.

        The id is "" without an agent.
        """
        self.sweep, self.agent = sweep, agent
        self.unreachable = ""
        """Why the runs of logger=wandb_online do not reach the server; "": they do."""
        self._tried = False

    @property
    def target(self) -> RunTarget | None:
        """Where runs are written; None: logger=none."""
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
        """Try the server, once; return a sentence for the user if it cannot be reached, else ""."""
        target = self.target
        if self._tried or target is None or target.kind != "online":
            return ""
        self._tried = True
        account = wandb_account()
        if account.works:
            return ""
        self.unreachable = account.detail
        return f"W&B: {account.detail.rstrip('.')}; runs are written into {target.folder} instead"

    def of_cell(self, cell: Cell, resumes: Callable[[Cell], bool]) -> LoggedCell | None:
        """Return what a cell needs to write its run to the dashboard; None if it writes none."""
        target = self.target
        if target is None or not writes_its_run(cell):
            return None
        words = apart(self.sweep.titles, cell)
        return LoggedCell(cell=cell, target=target, apart=words, resumed=resumes(cell))


def writes_its_run(cell: Cell) -> bool:
    """Return whether a cell writes its run while it runs: a training that is not timed.

    The runs of other cells are written from their rows when the sweep ends.
    """
    kind = runner_of(cell)
    return kind.trains and not kind.timed


def apart(titles: Mapping[str, str], cell: Cell) -> str | None:
    """Return what follows a cell's title to distinguish it in its sweep; None: not known."""
    short_title, full_title = title(cell), titles.get(cell.key, "")
    return full_title.removeprefix(short_title) if full_title.startswith(short_title) else None


def dashboard_folder(root: Path, logger: Logger) -> Path:
    """Return the folder of the results into which a logger writes."""
    name = "tensorboard" if logger.mode is LoggerMode.tensorboard else "wandb"
    return root.resolve() / name


def name_of(logger: Logger) -> str:
    """Return the name of a logger's dashboard for messages."""
    return "TensorBoard" if logger.mode is LoggerMode.tensorboard else "W&B"

"""What a worker tells a dashboard while its cells run: see `lra.sweep.live`.

Cells that have a run of their own, as trainings have, are written by their worker. Curves and
baselines, whose cells many workers share, are written once the sweep is complete.
"""

from collections.abc import Callable
from typing import Any

from lra.composition.run import LoggerMode
from lra.sweep.cell_list import Sweep
from lra.sweep.live import LiveSweep, about_cell, group_of
from runners.records import Cell


class LiveCells(LiveSweep):
    """Cells of one worker, on their way to a dashboard.

    Args:
        sweep: whose cells they are.
        say: is told what a person should know.
    """

    alone = True

    def __init__(self, sweep: Sweep, say: Callable[[str], None]) -> None:
        super().__init__(sweep, [])
        self.say = say

    def begin(self, cell: Cell) -> None:
        """Start the process that writes, with the first cell that it is for."""
        off = self.sweep.logger.mode is LoggerMode.disabled
        if off or self.runs is not None or self.fault or not _own(cell):
            return
        try:
            self.runs = self._started(())
        except OSError as error:  # no room, no right: rows are what matters
            self.fault = str(error)
        if word := self.check():
            self.say(word)

    def message(self, cell: Cell, message: object) -> None:
        """Pass on what a cell's process has sent."""
        if _own(cell):
            super().message(cell, message)

    def ended(self, cell: Cell, status: str, reason: str = "") -> None:
        """Pass on that the rows of a cell are stored."""
        if _own(cell):
            super().ended(cell, status, reason)

    def left(self, cell: Cell, reason: str) -> None:
        """Pass on that a cell stays without rows here, for now."""
        if _own(cell):
            super().left(cell, reason)

    def _begun(self, cell: Cell, event: str) -> dict[str, Any]:
        return {**super()._begun(cell, event), "planned": about_cell(cell, waiting=True)}

    def close(self, seconds: float | None = None) -> None:
        """End the process that writes; another cell would start one again."""
        if self.runs is None:
            return
        super().close(seconds)
        runs, self.runs = self.runs, None
        if runs.failed:
            self.say(f"{self._name} lacks something of this worker's cells: {runs.failed}")
        elif runs.dropped:
            self.say(f"{self._name} lacks {runs.dropped:,} numbers of running cells: too slow")


def _own(cell: Cell) -> bool:
    """Tell whether a cell has a run of its own."""
    return group_of(cell) == cell.key

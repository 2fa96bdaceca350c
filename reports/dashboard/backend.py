"""What a dashboard must be able to do, so that the same events reach it by the same keys."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra.reports.dashboard.describe import Description
from lra.reports.dashboard.plan import RunPlan


class OpenRun(ABC):
    """A run that is being written."""

    path: Path
    """Its folder."""
    steps: int
    """Steps below this one are there already."""
    there: set[tuple[float, str]]
    """What is there already: place on the axis, and key."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int, *, last: bool = False) -> None:
        """Add numbers at a step, which may be that of the call before; `last`: it has no more."""

    @abstractmethod
    def complete(self, plan: RunPlan) -> None:
        """Take over what the stored rows say, by which a run is judged."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Write what is left, and finish; the exit code is 0, 1 (failed) or 255 (stopped)."""


class Backend(ABC):
    """What opens runs."""

    mode: str
    """online or offline; it may change from the first to the second."""

    @abstractmethod
    def check(self) -> str:
        """Try what is needed; return why runs go into files instead of to a server, or ""."""

    @abstractmethod
    def open(
        self,
        run: str,
        about: Description,
        *,
        curve: bool,
        process: int | None,
        before: Path | None,
    ) -> OpenRun:
        """Open a run, or go on with it.

        Args:
            run: its id.
            about: name, group and configuration.
            curve: whether it is drawn over the length.
            process: number of the process whose use of the machine is drawn; None: none is.
            before: folder of what was written of it before, where it goes on.
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until what was written is whole."""

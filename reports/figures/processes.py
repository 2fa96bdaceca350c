"""Draw the figures of a large report in parallel, in a forked process for each.

A figure cannot be pickled for another process, because functions label its ticks, but a forked
process has a copy of it. The files are the same in both cases. If forking is unsafe, this process
draws all figures.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lra.conf.processors import processors


class FigureProcesses:
    """Forked processes that draw figures; at most `most` at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._running: dict[int, Callable[[], object]] = {}

    def submit(self, draw: Callable[[], object]) -> None:
        """Call `draw` in a new process, or in this one if `most` processes are running."""
        self._collect(wait=False)
        if len(self._running) >= self.most:
            draw()
            return
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            self._running[child] = draw
            return
        code = 1
        try:
            draw()
            code = 0
        finally:
            os._exit(code)  # exits without closing or printing what belongs to the parent

    def finish(self) -> None:
        """Wait until all processes have ended."""
        self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        """Remove processes that have ended; draw the figure of a failed process again here."""
        for child, draw in [*self._running.items()]:
            ended_child, status = os.waitpid(child, 0 if wait else os.WNOHANG)
            if ended_child:
                del self._running[child]
                if status:
                    draw()  # raises the error in this process


_DRAWING: ContextVar[FigureProcesses | None] = ContextVar("drawing", default=None)


def submit(draw: Callable[[], object]) -> None:
    """Call `draw` now; within `parallel_drawing`, in another process if one is free."""
    processes = _DRAWING.get()
    if processes is None:
        draw()
    else:
        processes.submit(draw)


@contextmanager
def parallel_drawing(*, enabled: bool) -> Iterator[None]:
    """Let `submit` draw in other processes; wait for all of them at the end of the `with` block.

    Args:
        enabled: whether there are enough figures; False changes nothing.
    """
    spare = processors() - 1 if hasattr(os, "sched_getaffinity") else 0
    # a fork would copy the locks of other threads in their locked state
    if not enabled or spare < 1 or threading.active_count() > 1:
        yield
        return
    drawing = FigureProcesses(spare)
    token = _DRAWING.set(drawing)
    try:
        yield
    finally:
        _DRAWING.reset(token)
        drawing.finish()

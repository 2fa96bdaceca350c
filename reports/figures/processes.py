"""Draw the figures of a large report in parallel, in a forked process for each.

A figure cannot be sent to another process, since its ticks are labelled by functions; a fork has
it. Files do not depend on who drew them. Where a fork is not safe, everything is drawn here.
"""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lra.conf.processors import processors


class FigureProcesses:
    """Processes that draw, as many as there are cores to spare."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._running: dict[int, Callable[[], object]] = {}

    def submit(self, draw: Callable[[], object]) -> None:
        """Draw in a new process if one is free, else here."""
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
            os._exit(code)  # nothing of the parent's is closed or printed twice

    def finish(self) -> None:
        """Wait for everything that is being drawn."""
        self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        for child, draw in [*self._running.items()]:
            done, status = os.waitpid(child, 0 if wait else os.WNOHANG)
            if done:
                del self._running[child]
                if status:
                    draw()  # what went wrong there is raised here


_DRAWING: ContextVar[FigureProcesses | None] = ContextVar("drawing", default=None)


def submit(draw: Callable[[], object]) -> None:
    """Draw now, or in parallel with what follows within `parallel_drawing`."""
    processes = _DRAWING.get()
    if processes is None:
        draw()
    else:
        processes.submit(draw)


@contextmanager
def parallel_drawing(*, enabled: bool) -> Iterator[None]:
    """Let figures be drawn in further processes; at the end all are there.

    Args:
        enabled: whether it is worth while.
    """
    spare = processors() - 1 if hasattr(os, "sched_getaffinity") else 0
    # the locks of other threads would stay locked in a fork
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

"""Signals by which somebody outside asks a program to stop, and processes that leave them to it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Schedulers send SIGTERM, or, some time before a limit, SIGUSR1; a keyboard SIGINT."""


class StopSignal(SystemExit):
    """One of them came, other than SIGINT, while nothing ran that saves itself.

    Its exit code is the one that a shell would say.

    Args:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = signal.Signals(number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `StopSignal` at such a signal, so that what was begun is cleared up; a second one ends.

    What has an answer of its own, as a pool of cells, gives it while it runs. In other threads than
    the main one nothing is listened to.
    """
    wanted = [each for each in STOPS if each is not signal.SIGINT]

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for each in wanted:
            signal.signal(each, signal.SIG_DFL)
        raise StopSignal(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, stop) for each in wanted}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def left_to_parent() -> Iterator[None]:
    """Have processes that start in the block wait with these signals, from their first line on.

    A signal often goes to a whole group. A process that still imports would answer with a
    traceback, and the tracker of `multiprocessing` would end before what it keeps track of.
    """
    from multiprocessing import resource_tracker  # most commands start no process

    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        resource_tracker.ensure_running()  # which lets SIGINT and SIGTERM through at its end
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through() -> None:
    """Let the signals through that `left_to_parent` keeps from this process."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

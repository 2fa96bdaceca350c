"""Signals that ask a program to stop, and child processes that ignore these signals."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Schedulers send SIGTERM, or, some time before a limit, SIGUSR1; a keyboard SIGINT."""


class StopSignal(SystemExit):
    """A signal of `STOPS` other than SIGINT stopped the program; exits with the shell's code.

    Args:
        number: Number of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = signal.Signals(number)


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `StopSignal` when such a signal arrives, so that the program can clean up.

    A second signal ends the program at once. Code inside the block may install other handlers, as
    the pool of runs does. In threads other than the main one, this does nothing.
    """
    handled = [stop_signal for stop_signal in STOPS if stop_signal is not signal.SIGINT]

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        """Raise `StopSignal`; a second signal then has its default effect."""
        for stop_signal in handled:
            signal.signal(stop_signal, signal.SIG_DFL)
        raise StopSignal(number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {stop_signal: signal.signal(stop_signal, stop) for stop_signal in handled}
    try:
        yield
    finally:
        for stop_signal, handler in before.items():
            signal.signal(stop_signal, handler)


@contextmanager
def left_to_parent() -> Iterator[None]:
    """Block the signals of `STOPS` in processes that start inside; their parent handles them.

    A signal often reaches a whole group of processes. A child that is still importing would print a
    traceback, and the resource tracker of `multiprocessing` would end too early.
    """
    from multiprocessing import resource_tracker  # most commands start no process

    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        resource_tracker.ensure_running()  # this call unblocks SIGINT and SIGTERM at its end
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_through() -> None:
    """Unblock, in a child process, the signals that `left_to_parent` blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

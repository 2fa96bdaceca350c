"""Signals that ask a training to finish its step, save its state and end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lra.tasks.data.signals import STOPS


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM or SIGUSR1 sets; outside the main thread, nothing sets it."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    signals = [number for number in STOPS if number is not signal.SIGINT]
    handlers = {number: signal.signal(number, lambda *_: event.set()) for number in signals}
    try:
        yield event
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)

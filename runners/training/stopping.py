"""Signals as a polite question: finish the step, write the state, leave."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lra.tasks.data.signals import STOPS


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Give an event that SIGTERM or SIGUSR1 sets; in other threads than the main one, nothing."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    asked = [number for number in STOPS if number is not signal.SIGINT]
    before = {number: signal.signal(number, lambda *_: event.set()) for number in asked}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

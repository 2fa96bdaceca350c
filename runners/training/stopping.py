"""Signals as a polite question: finish the step, write the state, leave."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.data.signals import STOPS


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Give an event that SIGTERM or SIGUSR1 sets; in other threads than the main one, nothing."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    asked = [each for each in STOPS if each is not signal.SIGINT]
    before = {each: signal.signal(each, lambda *_: event.set()) for each in asked}
    try:
        yield event
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)

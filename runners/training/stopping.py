"""SIGTERM as a polite question: finish the step, write the state, leave."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Give an event that SIGTERM sets; outside the main thread nothing is listened to."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGTERM, before)

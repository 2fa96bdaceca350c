"""Ways to run isolated work and to see that it is over."""

import time
from pathlib import Path

from lra.runners.isolation.child import ProcessSettings, judge
from lra.runners.isolation.isolate import run
from lra.runners.isolation.process import STATUSES


def done(function, argument=None, **limits):
    messages = []
    ending = run(function, argument, on_message=messages.append, **limits)
    return messages, ending


def judged(work, argument, log=None):
    """What becomes of a piece of work that raises, as the process of a cell judges it."""
    setting = ProcessSettings(
        environment={}, memory_bytes=None, threads=None, cores=(), statuses=STATUSES, log=log,
        speaks=True,
    )  # fmt: skip
    try:
        work(argument, lambda message: None)
    except BaseException as error:  # noqa: BLE001 - of any kind
        return judge(error, setting)
    raise AssertionError(f"{work.__name__}({argument!r}) raised nothing")


def is_gone(pid):
    """Whether a process ends within ten seconds; one that nobody reaps counts as gone."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False

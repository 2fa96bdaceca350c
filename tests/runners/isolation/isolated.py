"""Ways to run isolated work and to see that it is over."""

import os
import time
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import pytest

from lra.runners.isolation import isolate
from lra.runners.isolation.child import ProcessSettings, judge
from lra.runners.isolation.isolate import run
from lra.runners.isolation.process import STATUSES


@contextmanager
def another_server(*modules):
    """Fork from another fork server, which has imported these modules alone."""
    server = forkserver._forkserver
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolate._next, "modules", [*modules])
        for name in ("address", "alive_fd", "pid"):
            patch.setattr(server, f"_forkserver_{name}", None)
        yield
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)  # at which it ends
            os.waitpid(server._forkserver_pid, 0)


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

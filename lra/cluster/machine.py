"""Cells that read the clock are alone on their machine, whoever works on it.

The lock is the name of an abstract Unix socket, which lies in no folder: workers of all users,
whatever their folder for temporary files, see one another, and the kernel frees the name when its
process ends in any way. A container that has a network of its own is a machine of its own to it.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from lra.runners.records import digest
from lra.runners.storage.holders import machine_id

LOOK_S = 0.25
VISIBLE = "CUDA_VISIBLE_DEVICES"
NAMES = Path("/proc/net/unix")
"""The sockets of this machine, of all users."""


class NoLock(Exception):
    """This system has no such names, or does not list them."""


def part_of_machine() -> str:
    """Return what stands for the cores and GPUs that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return digest([machine_id(), cores, os.environ.get(VISIBLE, "")])


@contextmanager
def machine(*, alone: bool, waiting: Callable[[], None]) -> Iterator[str]:
    """Use this process's part of the machine, alone or with others that do not time anything.

    One that wants to be alone is not overtaken: it closes the gate through which all others come.

    Args:
        alone: whether nothing else may run.
        waiting: called once where somebody else has to end first.

    Yields:
        Why nobody is kept away; "" where the machine is taken.
    """
    part = f"lra-machine-{part_of_machine()}"
    gate, room = f"{part}.gate", f"{part}.room."
    noted = False

    def wait() -> None:
        nonlocal noted
        if not noted:
            waiting()
            noted = True
        time.sleep(LOOK_S)

    with ExitStack() as held:
        fault = ""
        try:
            while (closed := _taken(gate)) is None:
                wait()
            held.enter_context(closed)
            if gate not in _names(part):
                raise NoLock(f"{NAMES} does not list the sockets of this process")
            if alone:
                while any(name.startswith(room) for name in _names(part)):
                    wait()
            else:
                inside = _taken(f"{room}{uuid4().hex[:8]}")
                assert inside is not None
                held.enter_context(inside)
                closed.close()
        except NoLock as error:
            fault = str(error)
        yield fault


def _taken(name: str) -> socket.socket | None:
    """Return a socket that has this name until it is closed; None where another has it."""
    if sys.platform != "linux":
        raise NoLock(f"{sys.platform} does not support locks that all users of a machine share")
    try:
        taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise NoLock(f"this system cannot create sockets: {error}") from error
    try:
        taken.bind(f"\0{name}")
    except OSError as error:
        taken.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise NoLock(f"this system does not support abstract socket names: {error}") from error
    return taken


def _names(part: str) -> list[str]:
    """Return the abstract names that begin so and are taken on this machine."""
    try:
        lines = NAMES.read_text(errors="replace").splitlines()
    except OSError as error:
        raise NoLock(f"the sockets of this machine cannot be listed: {error}") from error
    names = (line.rpartition(" ")[2].removeprefix("@") for line in lines)
    return [name for name in names if name.startswith(part)]

"""A lock by which a timed cell is the only one on its machine, among the cells of all users.

The lock is the name of an abstract Unix socket. All users of a machine share these names, whatever
their folder for temporary files, and the kernel frees a name when its process ends in any way. A
container with a separate network counts as a separate machine.
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
    """This system has no abstract socket names, or does not list them."""


def part_of_machine() -> str:
    """Return a digest of the machine and of the cores and GPUs that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return digest([machine_id(), cores, os.environ.get(VISIBLE, "")])


@contextmanager
def machine(*, alone: bool, waiting: Callable[[], None]) -> Iterator[str]:
    """Use this process's part of the machine, either alone or together with cells without timing.

    Every process takes the name `gate` first. One that wants to be alone keeps it, so that nobody
    else can enter, and waits until all processes inside (each has a name with `room`) have left.

    Args:
        alone: whether no other cell may run meanwhile.
        waiting: called once if another process has to end first.

    Yields:
        Why the lock does not work on this machine; "" if it works.
    """
    part = f"lra-machine-{part_of_machine()}"
    gate, room = f"{part}.gate", f"{part}.room."
    announced = False

    def wait() -> None:
        """Sleep before the next look; the first time, call `waiting` before."""
        nonlocal announced
        if not announced:
            waiting()
            announced = True
        time.sleep(LOOK_S)

    with ExitStack() as on_exit:
        fault = ""
        try:
            while (gate_socket := _take_name(gate)) is None:
                wait()
            on_exit.enter_context(gate_socket)
            if gate not in _list_names(part):
                raise NoLock(f"{NAMES} does not list the sockets of this process")
            if alone:
                while any(name.startswith(room) for name in _list_names(part)):
                    wait()
            else:
                room_socket = _take_name(f"{room}{uuid4().hex[:8]}")
                assert room_socket is not None
                on_exit.enter_context(room_socket)
                gate_socket.close()
        except NoLock as error:
            fault = str(error)
        yield fault


def _take_name(name: str) -> socket.socket | None:
    """Return a socket that owns `name` until it is closed; None if another process owns it."""
    if sys.platform != "linux":
        raise NoLock(f"{sys.platform} does not support locks that all users of a machine share")
    try:
        owner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise NoLock(f"this system cannot create sockets: {error}") from error
    try:
        owner.bind(f"\0{name}")
    except OSError as error:
        owner.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise NoLock(f"this system does not support abstract socket names: {error}") from error
    return owner


def _list_names(part: str) -> list[str]:
    """Return the abstract socket names in use on this machine that begin with `part`."""
    try:
        lines = NAMES.read_text(errors="replace").splitlines()
    except OSError as error:
        raise NoLock(f"the sockets of this machine cannot be listed: {error}") from error
    # A line ends in the name of a socket; the kernel writes @ before an abstract one.
    names = (line.rpartition(" ")[2].removeprefix("@") for line in lines)
    return [name for name in names if name.startswith(part)]

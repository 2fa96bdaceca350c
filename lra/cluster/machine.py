"""Cells that read the clock are alone on their machine, whichever workers share it."""

import fcntl
import getpass
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from runners.isolation import temporary
from runners.records import digest
from runners.storage.holders import machine_id

LOOK_S = 0.25
VISIBLE = "CUDA_VISIBLE_DEVICES"


def lock_folder() -> Path:
    """Return the folder of this machine's locks, created where missing."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = str(os.getuid())
    parent = temporary.base_folder()
    folder = parent / f"lra-machine-{name}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise temporary.unwritable(parent, error) from error
    return folder


def part_of_machine() -> str:
    """Return what stands for the cores and GPUs that this process may use."""
    cores = sorted(os.sched_getaffinity(0))
    return digest([machine_id(), cores, os.environ.get(VISIBLE, "")])


@contextmanager
def machine(*, alone: bool, waiting: Callable[[], None]) -> Iterator[None]:
    """Use this process's part of the machine, alone or with others that do not time anything.

    The system gives the locks of a process back when it ends, however it ends. One that wants to be
    alone is not overtaken: it closes the gate through which all others come.

    Args:
        alone: whether nothing else may run.
        waiting: called once where somebody else has to end first.
    """
    folder, name = lock_folder(), part_of_machine()
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    with ExitStack() as files:
        gate, room = (
            files.enter_context((folder / f"{name}.{part}").open("ab")) for part in ("gate", "room")
        )
        noted = False
        for file in (gate, room):
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(file, kind | fcntl.LOCK_NB)
                    break
                if not noted:
                    waiting()
                    noted = True
                time.sleep(LOOK_S)
        if not alone:
            fcntl.flock(gate, fcntl.LOCK_UN)
        yield

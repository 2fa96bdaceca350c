"""Called in a process of the program before all else: nothing remembers the folder of another.

And what it leaves on the machine is known to be its own.
"""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.campaign import machine


def begin(also: Callable[[], object] | None = None) -> None:
    """Forget the temporary folder of the process that this one was forked from; mark this one's.

    Args:
        also: is called afterwards.
    """
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    machine.mark_processes(Path.cwd())  # a case has a folder of its own
    if also is not None:
        also()

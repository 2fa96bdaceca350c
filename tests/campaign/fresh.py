"""Called in a process of the program before all else: nothing remembers the folder of another."""

import multiprocessing
import tempfile
from collections.abc import Callable


def begin(also: Callable[[], object] | None = None) -> None:
    """Forget the temporary folder of the process that this one was forked from.

    Args:
        also: is called afterwards.
    """
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    if also is not None:
        also()

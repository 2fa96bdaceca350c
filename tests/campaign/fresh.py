"""Called in a process of the program before all else: nothing remembers the folder of another."""

import multiprocessing
import tempfile


def begin() -> None:
    """Forget the temporary folder of the process that this one was forked from."""
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]

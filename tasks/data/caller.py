"""The program that starts processes, kept out of them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def caller_left_out(function: Callable[..., object]) -> Iterator[None]:
    """Keep a process that starts meanwhile from importing the program that starts it.

    `multiprocessing` imports it in every child: a script without a guard would start again in each,
    and one that came from stdin cannot be imported at all. Where the work itself stands in the
    program, it has to be.

    Args:
        function: the work.
    """
    program = sys.modules["__main__"]
    if getattr(function, "__module__", "") != "__main__":
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program

"""Prevents child processes from importing the program that starts them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def caller_left_out(function: Callable[..., object]) -> Iterator[None]:
    """Prevent processes that start inside the block from importing the main program.

    `multiprocessing` imports it in every child. A script without a guard would then start again in
    each child, and a program from stdin cannot be imported at all. If `function`, the work of the
    children, is defined in the main program, they must import it, so nothing changes.
    """
    program = sys.modules["__main__"]
    if getattr(function, "__module__", "") != "__main__":
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = program

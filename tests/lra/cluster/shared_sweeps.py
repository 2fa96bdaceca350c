"""Workers of the sweep `some` in processes of their own, and waiting for what they do."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from tests.lra_process import Program

LONGEST_S = 120.0


def work(results: Path, *flags: str) -> Program:
    """Start `lra work`."""
    return Program(["work", "some", "--results", str(results), *flags], env=dict(os.environ))


def ended(program: Program) -> tuple[int, bytes]:
    """Return the exit code, and what it said."""
    said = program.communicate(LONGEST_S)
    return program.wait(LONGEST_S), said


def until(holds: Callable[[], object]) -> None:
    """Wait for something to be so."""
    end = time.monotonic() + LONGEST_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)

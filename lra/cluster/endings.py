"""Why workers ended early: as they say, or as what is left of their words tells."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from conf.plain_files import open_file
from lra.cluster.plan import StoredPlan
from runners.records import legible

OUTPUTS = ("logs/start-*.log", "slurm/*_log.out")
"""Where standard error of workers goes, below a plan's folder."""
COMPLAINT, STOPPED = "lra: ", " stopped: "
MOST_READ = 20_000
"""Bytes of the end of a log."""
LEAST_ROOM = 2**20
"""With fewer bytes free, a worker cannot be expected to begin."""


def early_endings(plan: StoredPlan, states: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    """Return why workers of a plan, since it was submitted last, ended with an error.

    On a full disk a worker may not be able to write its state: its log has room where a block of it
    is not full, and where nothing says a word, that there is no space now is told.
    """
    since, found = float(plan.head["made"]), Counter[str]()
    for name, state in states.items():
        code = str(state.get("doing", "")).removeprefix("ended with ")
        if state.get("at", 0.0) >= since and code.isdecimal() and code not in ("0", "143"):
            why = state.get("why") or _last(plan.folder / "logs" / f"{name}.log", STOPPED)
            found[legible(str(why)) if why else f"with {code}"] += 1
    for path in sorted(each for pattern in OUTPUTS for each in plan.folder.glob(pattern)):
        with suppress(OSError):
            why = _last(path, COMPLAINT) if path.stat().st_mtime >= since else ""
            if why and legible(why) not in found:
                found[legible(why)] += 1
    return found


def room_lines(root: Path) -> Iterator[str]:
    """Yield what there is to say of the space that is left for results."""
    with suppress(OSError):
        free = shutil.disk_usage(root).free
        if free < LEAST_ROOM:
            yield f"no space is left in {root} ({free:,} bytes free): workers end until there is"


def _last(path: Path, mark: str) -> str:
    """Return what stands behind a mark in the last line of a log that has it; "" where none has."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - MOST_READ))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    marked = [line for line in lines if mark in line]
    return marked[-1].partition(mark)[2].strip() if marked else ""

"""From what cells need to a few classes of workers, and what a worker of each has."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lra.cluster.engine import Resources, WorkerGroup

MOST_CLASSES = 3
GIB = 2**30
STEP = 4
"""Memory of one class over that of the next smaller one."""
HEADROOM = 1.25
"""Memory of a worker over what is counted of its largest cell."""
LONGEST_S = 24 * 3600.0
SHORTEST_S = 3600.0


@dataclass(slots=True)
class _Class:
    """Cells that workers of one kind run."""

    needs: Resources
    seconds: float
    """Of all its cells."""
    cells: int

    def with_(self, other: "_Class") -> "_Class":
        """Return the class of both."""
        return _Class(
            largest([self.needs, other.needs]),
            self.seconds + other.seconds,
            self.cells + other.cells,
        )


def worker_groups(needs: Sequence[Resources], workers: int) -> list[WorkerGroup]:
    """Return the workers for cells: up to three sizes, more workers where there is more to do.

    A group is named after what its workers hold, so that one name never means two sizes.

    Args:
        needs: of each cell that is to be run.
        workers: in all; every size has one at least.
    """
    times = [need.seconds for need in needs if need.seconds is not None]
    typical = sum(times) / len(times) if times else 1.0
    by_size: dict[tuple[int, int, int], _Class] = {}
    for need in needs:
        # What is counted of a cell on a GPU is the GPU's memory, which no scheduler divides.
        asked = replace(need, memory_bytes=None) if need.gpus else need
        part = _Class(asked, typical if asked.seconds is None else asked.seconds, 1)
        size = (asked.gpus, asked.cpus, step_of(asked.memory_bytes))
        by_size[size] = by_size[size].with_(part) if size in by_size else part
    classes = [by_size[size] for size in sorted(by_size)]
    while len(classes) > max(1, min(MOST_CLASSES, workers)):
        # The two neighbours that have the least to do share workers of the larger size.
        at = min(range(len(classes) - 1), key=lambda n: classes[n].seconds + classes[n + 1].seconds)
        classes[at : at + 2] = [classes[at].with_(classes[at + 1])]
    counts = shares([part.seconds for part in classes], [part.cells for part in classes], workers)
    return [
        WorkerGroup(name=name_of(part.needs), count=count, resources=part.needs)
        for count, part in zip(counts, classes, strict=True)
    ]


def with_clock(cells: Sequence[tuple[Resources, bool]], workers: int) -> list[WorkerGroup]:
    """Return the workers for cells of which some read the clock: these have workers of their own.

    Args:
        cells: what each needs, and whether it reads the clock.
        workers: in all; where there is one, it does both.
    """
    kinds = [kind for kind in (False, True) if any(timed == kind for _, timed in cells)]
    if workers < len(kinds):
        (group,) = worker_groups([needs for needs, _ in cells], 1)
        return [replace(group, name=f"{group.name}-clock", timed=True)]
    parts = {kind: [needs for needs, timed in cells if timed == kind] for kind in kinds}
    work = [sum(need.seconds or 1.0 for need in parts[kind]) for kind in kinds]
    counts = shares(work, [len(parts[kind]) for kind in kinds], workers)
    return [
        replace(group, name=f"{group.name}-clock" if kind else group.name, timed=kind)
        for kind, count in zip(kinds, counts, strict=True)
        for group in worker_groups(parts[kind], count)
    ]


def name_of(needs: Resources) -> str:
    """Return a name that says what a worker holds: 1gpu-4cpu-20gib."""
    words = [f"{needs.gpus}gpu"] if needs.gpus else []
    words.append(f"{needs.cpus}cpu")
    if needs.memory_bytes is not None:
        words.append(f"{math.ceil(needs.memory_bytes / GIB)}gib")
    return "-".join(words)


def step_of(memory_bytes: int | None) -> int:
    """Return the number of a class of memory, 0 for less than 4 GiB and for what is not known."""
    if memory_bytes is None or memory_bytes < STEP * GIB:
        return 0
    return int(math.log(memory_bytes / GIB, STEP))


def largest(needs: Sequence[Resources]) -> Resources:
    """Return what holds each of these; what is not known of some counts for none."""
    memory = [need.memory_bytes for need in needs if need.memory_bytes is not None]
    seconds = [need.seconds for need in needs if need.seconds is not None]
    return Resources(
        gpus=max(need.gpus for need in needs),
        cpus=max(need.cpus for need in needs),
        memory_bytes=max(memory, default=None),
        seconds=max(seconds, default=None),
    )


def shares(work: Sequence[float], most: Sequence[int], workers: int) -> list[int]:
    """Divide workers by work: one at least for each part, and no more than it has cells."""
    counts = [1] * len(work)
    for _ in range(workers - len(work)):
        open_ones = [n for n, count in enumerate(counts) if count < most[n]]
        if not open_ones:
            break
        counts[max(open_ones, key=lambda n: work[n] / counts[n])] += 1
    return counts


def time_of(longest_cell: float | None, hours: float | None, limit: float | None) -> float:
    """Return the seconds of a worker.

    Args:
        longest_cell: seconds of the longest of its cells; None: not known.
        hours: what the person asks for.
        limit: the longest that is allowed; None: no limit.
    """
    if hours is not None:
        return hours * 3600
    seconds = LONGEST_S if longest_cell is None else min(LONGEST_S, 2 * longest_cell)
    return min(max(SHORTEST_S, seconds), limit if limit is not None else LONGEST_S)

"""Sorts cells into a few classes of workers by what they need, and sizes the workers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lra.cluster.engine import Resources, WorkerGroup

MOST_CLASSES = 3
GIB = 2**30
STEP = 4
"""The ratio of memory between neighbouring classes."""
HEADROOM = 1.25
"""The ratio of a worker's memory to the counted memory of its largest cell."""
LONGEST_S = 24 * 3600.0
SHORTEST_S = 3600.0


@dataclass(slots=True)
class _Class:
    """Cells that workers of one size run."""

    needs: Resources
    seconds: float
    """The sum over its cells."""
    cells: int

    def with_(self, other: "_Class") -> "_Class":
        """Return a class with the cells of both."""
        return _Class(
            largest([self.needs, other.needs]),
            self.seconds + other.seconds,
            self.cells + other.cells,
        )


def worker_groups(needs: Sequence[Resources], workers: int) -> list[WorkerGroup]:
    """Return groups of workers for cells, of up to three sizes. More work gets more workers.

    A group is named after the resources of its workers, so that a name never means two sizes.

    Args:
        needs: the resources that each cell needs.
        workers: the number of all workers; each group has at least one.
    """
    times = [need.seconds for need in needs if need.seconds is not None]
    # A cell of unknown time counts as one of average time.
    typical = sum(times) / len(times) if times else 1.0
    by_size: dict[tuple[int, int, int], _Class] = {}
    for need in needs:
        # On a GPU, the memory of the GPU is counted, which schedulers do not divide.
        requested = replace(need, memory_bytes=None) if need.gpus else need
        part = _Class(requested, typical if requested.seconds is None else requested.seconds, 1)
        size = (requested.gpus, requested.cpus, step_of(requested.memory_bytes))
        by_size[size] = by_size[size].with_(part) if size in by_size else part
    classes = [by_size[size] for size in sorted(by_size)]
    while len(classes) > max(1, min(MOST_CLASSES, workers)):
        # Join the two neighbouring classes with the least work: the larger size serves both.
        first = min(
            range(len(classes) - 1), key=lambda n: classes[n].seconds + classes[n + 1].seconds
        )
        classes[first : first + 2] = [classes[first].with_(classes[first + 1])]
    counts = shares([part.seconds for part in classes], [part.cells for part in classes], workers)
    return [
        WorkerGroup(name=name_of(part.needs), count=count, resources=part.needs)
        for count, part in zip(counts, classes, strict=True)
    ]


def with_clock(cells: Sequence[tuple[Resources, bool]], workers: int) -> list[WorkerGroup]:
    """Return groups of workers for cells, with separate groups for cells that are timed.

    Args:
        cells: the needs of each cell, and whether it is timed.
        workers: the number of all workers; a single one runs both kinds of cells.
    """
    # Whether cells of a kind are timed: [False, True] if there are both kinds.
    kinds = [is_timed for is_timed in (False, True) if any(timed == is_timed for _, timed in cells)]
    if workers < len(kinds):
        (group,) = worker_groups([needs for needs, _ in cells], 1)
        return [replace(group, name=f"{group.name}-clock", timed=True)]
    parts = {is_timed: [needs for needs, timed in cells if timed == is_timed] for is_timed in kinds}
    work = [sum(need.seconds or 1.0 for need in parts[is_timed]) for is_timed in kinds]
    counts = shares(work, [len(parts[is_timed]) for is_timed in kinds], workers)
    return [
        replace(group, name=f"{group.name}-clock" if is_timed else group.name, timed=is_timed)
        for is_timed, count in zip(kinds, counts, strict=True)
        for group in worker_groups(parts[is_timed], count)
    ]


def name_of(needs: Resources) -> str:
    """Return a name for the resources of a worker, for example 1gpu-4cpu-20gib."""
    parts = [f"{needs.gpus}gpu"] if needs.gpus else []
    parts.append(f"{needs.cpus}cpu")
    if needs.memory_bytes is not None:
        parts.append(f"{math.ceil(needs.memory_bytes / GIB)}gib")
    return "-".join(parts)


def step_of(memory_bytes: int | None) -> int:
    """Return the number of a memory class: 0 below 4 GiB (or not known), 1 below 16 GiB, etc."""
    if memory_bytes is None or memory_bytes < STEP * GIB:
        return 0
    return int(math.log(memory_bytes / GIB, STEP))


def largest(needs: Sequence[Resources]) -> Resources:
    """Return resources that suffice for each of `needs`; unknown needs are ignored."""
    memory = [need.memory_bytes for need in needs if need.memory_bytes is not None]
    seconds = [need.seconds for need in needs if need.seconds is not None]
    return Resources(
        gpus=max(need.gpus for need in needs),
        cpus=max(need.cpus for need in needs),
        memory_bytes=max(memory, default=None),
        seconds=max(seconds, default=None),
    )


def shares(work: Sequence[float], most: Sequence[int], workers: int) -> list[int]:
    """Return how many workers each part gets, in proportion to its work.

    Each part gets at least one worker, and at most as many as it has cells (`most`). The others are
    given out one by one, each to the part with the most work per worker.
    """
    counts = [1] * len(work)
    for _ in range(workers - len(work)):
        open_ones = [n for n, count in enumerate(counts) if count < most[n]]
        if not open_ones:
            break
        counts[max(open_ones, key=lambda n: work[n] / counts[n])] += 1
    return counts


def time_of(longest_cell: float | None, hours: float | None, limit: float | None) -> float:
    """Return the time limit of a worker, in seconds: by default, twice that of its longest cell.

    The default is at least `SHORTEST_S` and at most `LONGEST_S`.

    Args:
        longest_cell: seconds of the longest of its cells; None: not known.
        hours: the time limit that the user asks for; None: none.
        limit: the longest time limit that is allowed, in seconds; None: any.
    """
    if hours is not None:
        return hours * 3600
    seconds = LONGEST_S if longest_cell is None else min(LONGEST_S, 2 * longest_cell)
    return min(max(SHORTEST_S, seconds), limit if limit is not None else LONGEST_S)

"""Gives places of one machine to jobs. A place is a GPU, some cores, or only the right to run.

A job takes one place for each of its processes, all at once; their number is its width. The widest
waiting job starts first. If it does not fit, places are reserved for it: first those of running
jobs, the longest running first, then free ones. Narrower jobs may take only other places. So the
wide job starts at the latest when the jobs on its reserved places have ended.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlace:
    """The GPU or the cores of one process. Without both, the operating system decides."""

    gpu: str | None = None
    """`CUDA_VISIBLE_DEVICES` for a process that has this GPU alone: a number or a UUID."""
    identity: str = ""
    """UUID of the GPU; "" if unknown."""
    cores: tuple[int, ...] = ()
    """Numbers of the only cores on which the process may run; (): all."""


Taken = tuple[DevicePlace, ...]
"""The places of one job, one for each of its processes, in the order of their ranks."""


def words(taken: Sequence[DevicePlace]) -> str:
    """Return the places of a job as text, such as `GPUs 0, 1`; "" without GPUs and cores."""
    gpus = [place.gpu for place in taken if place.gpu is not None]
    if gpus:
        return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}"
    cores = sorted(core for place in taken for core in place.cores)
    return f"core{'s' if len(cores) > 1 else ''} {spans(cores)}" if cores else ""


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as a text of ranges, such as `0-3, 8`."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in ranges)


def place_facts(taken: Sequence[DevicePlace]) -> dict[str, str]:
    """Return the entries `gpus` and `cores` of the environment file of a run, from its places."""
    stored = {}
    if any(place.gpu is not None for place in taken):
        stored["gpus"] = ", ".join(
            f"{place.gpu} ({place.identity})" if place.identity else str(place.gpu)
            for place in taken
        )
    if cores := [core for place in taken for core in place.cores]:
        stored["cores"] = spans(cores)
    return stored


def seats(number: int) -> Taken:
    """Return `number` places without GPUs and cores, which only limit the number of processes."""
    if number < 1:
        raise ValueError(f"processes must be at least 1: got {number}")
    return (DevicePlace(),) * number


def core_places(cores: Sequence[int], per_place: int) -> list[DevicePlace]:
    """Return places with `per_place` neighbouring cores each; remaining cores are not used.

    Args:
        cores: numbers of cores; neighbours are next to each other.
        per_place: number of cores of a place.
    """
    return [
        DevicePlace(cores=tuple(cores[first : first + per_place]))
        for first in range(0, len(cores) - per_place + 1, per_place)
    ]


class Places:
    """Knows which places are free, taken and reserved, and decides which job may start."""

    def __init__(self, places: Sequence[DevicePlace], *, alone: bool = False) -> None:
        """Start with all places free.

        Args:
            places: all places. If several name one GPU, jobs share it, but a job gets each GPU
                only once.
            alone: whether only one job runs at a time.
        """
        if not places:
            raise ValueError("a machine needs at least 1 place for jobs: got 0")
        self.all, self.alone = tuple(places), alone
        self._free = list(range(len(places)))
        # By places, the indices of the jobs that have them: several jobs may have equal places.
        self._taken: dict[Taken, list[tuple[int, ...]]] = {}
        self._running: list[tuple[int, ...]] = []
        """Indices of the places of each running job, the longest running first."""
        self._reserved: frozenset[int] = frozenset()
        """Indices of the places that are reserved for the widest waiting job."""
        self._reserved_width = 0
        """Width of that job; 0: no place is reserved."""

    @property
    def most(self) -> int:
        """Return the width of the widest job that fits when all places are free."""
        return len(self._distinct(range(len(self.all))))

    def check(self, width: int) -> None:
        """Raise ValueError if a job of this width never fits."""
        if width < 1:
            raise ValueError(f"processes must be at least 1: got {width}")
        if width > self.most:
            raise ValueError(
                f"processes: got {width}; wanted at most {self.most}, because this machine has no "
                "places for more"
            )

    def next(self, waiting: Collection[int]) -> int | None:
        """Return the width of the job that may start now; None: none of the waiting jobs may.

        Args:
            waiting: widths of the waiting jobs, each at most `most`.
        """
        if not waiting or (self.alone and self._running):
            return None
        widest, *rest = sorted(set(waiting), reverse=True)
        if len(self._distinct(self._free)) >= widest:
            self._reserved, self._reserved_width = frozenset(), 0
            return widest
        if self._reserved_width != widest:
            running = [index for job in self._running for index in job]
            self._reserved = frozenset(self._distinct([*running, *self._free])[:widest])
            self._reserved_width = widest
        unreserved = len(self._distinct(self._unreserved()))
        return next((width for width in rest if width <= unreserved), None)

    def take(self, width: int) -> Taken:
        """Take `width` places for a job; `next` must have just returned this width."""
        indices = tuple(self._distinct(self._unreserved())[:width])
        if len(indices) < width:
            raise ValueError(f"a job needs {width} places, but only {len(indices)} are free")
        self._free = [index for index in self._free if index not in indices]
        self._running.append(indices)
        places = tuple(self.all[index] for index in indices)
        self._taken.setdefault(places, []).append(indices)
        return places

    def give_back(self, taken: Taken) -> None:
        """Free the places of a job that has ended."""
        indices = self._taken[taken].pop(0)
        self._running.remove(indices)
        self._free = sorted([*self._free, *indices])

    def _unreserved(self) -> list[int]:
        return [index for index in self._free if index not in self._reserved]

    def _distinct(self, indices: Iterable[int]) -> list[int]:
        """Return the first of the places for each GPU, and all places without a GPU."""
        firsts: dict[object, int] = {}
        for index in indices:
            gpu = self.all[index].gpu
            firsts.setdefault(index if gpu is None else gpu, index)
        return list(firsts.values())

"""The places of one machine, and who has which: a GPU, some cores, or a mere seat. Pure.

A job takes one place for each of its processes, all at once. Jobs of several widths wait in lanes.
The widest lane goes first. Where its next job does not fit, as many places as it needs are set
aside: those of what runs, the longest running first, then free ones. Narrower jobs take only other
places, so that the wide job starts, at the latest, once the jobs on those places have ended,
however many narrow ones wait; it starts sooner where others end first.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePlace:
    """What one process may use. Without a GPU and without cores: whatever the system gives it."""

    gpu: str | None = None
    """What `CUDA_VISIBLE_DEVICES` says to a process that has this GPU alone: a number or a UUID."""
    identity: str = ""
    """UUID of the GPU, as its driver says it; "" where it says none."""
    cores: tuple[int, ...] = ()
    """Numbers of the cores on which the process is kept."""


Taken = tuple[DevicePlace, ...]
"""The places of one job, one for each of its processes, in the order of their ranks."""


def words(taken: Sequence[DevicePlace]) -> str:
    """Return what a job has, as a person says it: `GPUs 0, 1`; "" for mere seats."""
    gpus = [place.gpu for place in taken if place.gpu is not None]
    if gpus:
        return f"GPU{'s' if len(gpus) > 1 else ''} {', '.join(gpus)}"
    cores = sorted(core for place in taken for core in place.cores)
    return f"core{'s' if len(cores) > 1 else ''} {spans(cores)}" if cores else ""


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as ranges, as the system does: `0-3, 8`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def place_facts(taken: Sequence[DevicePlace]) -> dict[str, str]:
    """Return what is stored of a job's places with the versions: `gpus`, `cores`."""
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
    """Return places that are a number of processes and nothing more."""
    if number < 1:
        raise ValueError(f"processes must be at least 1: got {number}")
    return (DevicePlace(),) * number


def core_places(cores: Sequence[int], per_place: int) -> list[DevicePlace]:
    """Return places of `each` cores, neighbours together; what is left over belongs to none.

    Args:
        cores: in the order in which they are neighbours.
        per_place: cores of a place.
    """
    return [
        DevicePlace(cores=tuple(cores[first : first + per_place]))
        for first in range(0, len(cores) - per_place + 1, per_place)
    ]


class Places:
    """Which places are free, which are taken, and what may start now."""

    def __init__(self, places: Sequence[DevicePlace], *, alone: bool = False) -> None:
        """Begin with all of them free.

        Args:
            places: several may name one GPU, which jobs then share; a job has each GPU once.
            alone: whether one job runs at a time, however many places there are.
        """
        if not places:
            raise ValueError("places must be at least 1: got 0")
        self.all, self.alone = tuple(places), alone
        self._free = list(range(len(places)))
        self._taken: dict[Taken, list[tuple[int, ...]]] = {}
        self._running: list[tuple[int, ...]] = []
        """The longest running first."""
        self._kept: frozenset[int] = frozenset()
        """Set aside for the widest that waits."""
        self._kept_for = 0

    @property
    def most(self) -> int:
        """The widest job that ever fits."""
        return len(self._distinct(range(len(self.all))))

    def check(self, width: int) -> None:
        """Refuse a job that never fits. Raises ValueError."""
        if width < 1:
            raise ValueError(f"processes must be at least 1: got {width}")
        if width > self.most:
            raise ValueError(f"processes: got {width}; this machine has places for {self.most}")

    def next(self, waiting: Collection[int]) -> int | None:
        """Return how wide the job is that may start now; None: none of those that wait.

        Args:
            waiting: widths of the jobs that wait, each at most `most`.
        """
        if not waiting or (self.alone and self._running):
            return None
        widest, *rest = sorted(set(waiting), reverse=True)
        if len(self._distinct(self._free)) >= widest:
            self._kept, self._kept_for = frozenset(), 0
            return widest
        if self._kept_for != widest:
            running = [index for job in self._running for index in job]
            self._kept = frozenset(self._distinct([*running, *self._free])[:widest])
            self._kept_for = widest
        unreserved = len(self._distinct(self._unreserved()))
        return next((width for width in rest if width <= unreserved), None)

    def take(self, width: int) -> Taken:
        """Take places for a job for which `next` has just allowed it."""
        indices = tuple(self._distinct(self._unreserved())[:width])
        if len(indices) < width:
            raise ValueError(f"wanted {width} places, but only {len(indices)} are free")
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
        return [index for index in self._free if index not in self._kept]

    def _distinct(self, indices: Iterable[int]) -> list[int]:
        """Return the first place of each GPU among these; without GPUs, all."""
        firsts: dict[object, int] = {}
        for index in indices:
            gpu = self.all[index].gpu
            firsts.setdefault(index if gpu is None else gpu, index)
        return list(firsts.values())

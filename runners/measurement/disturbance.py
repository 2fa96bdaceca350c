"""Decides whether the machine disturbed a timed sample, and whether samples agree.

A sample is disturbed if counters of the machine (`lra.runners.measurement.witnesses`), read before
and after it, show that it lost more than a certain fraction of its time, for example because it
waited for a processor. Samples may also differ widely although no counter explains it
(`scatter_reason`). A sample is excluded only because of counters: to exclude it because it was slow
would bias the result. Torch-free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from lra.conf.processors import cpu_quota
from lra.runners.measurement.witnesses import Machine, ProcessTimes

LIMIT = 0.1
"""Fraction of its wall-clock time that one sample may lose to any one cause."""
MEDIAN_LIMIT = 0.05
"""The same for the median of the retained samples; a reported time may be too long by this."""
TURN_S = 50e-6
"""On an idle machine, a thread that wakes up waits at most so many seconds for a processor."""
OTHERS = 0.05
"""Fraction of all processors that other processes may use, for example services."""
TICKS = 2
"""`/proc/stat` and the clock of a process may disagree by so many ticks."""
THROTTLED, WAITED = "held back by the container's limit", "waited for a processor"
"""Reasons that a processor quota below the number of threads may cause: see `with_quota`."""
SPREAD = 2.0
"""Largest ratio of upper to lower quartile for samples of one call. Undisturbed samples differ by a
few hundredths, except for calls below a millisecond that use several threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What happened during a stretch of time, as fractions of wall-clock time; None: unknown."""

    seconds: float
    processor: float
    """Processor time of the process, in seconds per second: up to the number of threads."""
    thread: float = 0.0
    """Processor time of the measuring thread alone: up to 1."""
    waiting: float | None = None
    """Time that threads were ready but had no processor; a sum over threads, so it may exceed 1."""
    absent: float | None = None
    """Time that the measuring thread neither ran nor waited for a processor: it slept or read."""
    throttled: float | None = None
    memory_stall: float | None = None
    faults: int = 0
    steal: float | None = None
    """Fraction of all processors that other virtual machines took."""
    other_load: float | None = None
    """Fraction of all processors that other processes used."""
    unsure: float = 0.0
    """`steal` and `other_load` may be too high by this, because ticks are coarse."""
    gpu: str = ""
    """What disturbed the GPU; "" for nothing."""


def shares_between(first: ProcessTimes, last: ProcessTimes) -> Shares:
    """Return the shares of this process between two readings.

    For each wake-up of a thread, `TURN_S` seconds are subtracted from `waiting`, because threads
    wait so long on an undisturbed machine, too.
    """
    seconds = max(last.at - first.at, 1e-9)
    waited = _difference(last.waited, first.waited)
    if waited is not None and first.slices is not None and last.slices is not None:
        waited = max(0.0, waited - TURN_S * max(0, last.slices - first.slices))
    thread_waited, absent = _difference(last.thread_waited, first.thread_waited), None
    if thread_waited is not None:
        absent = max(0.0, 1 - (last.thread - first.thread + thread_waited) / seconds)

    def share(spent: float | None) -> float | None:
        return None if spent is None else max(0.0, spent) / seconds

    return Shares(
        seconds=seconds,
        processor=max(0.0, last.process - first.process) / seconds,
        thread=max(0.0, last.thread - first.thread) / seconds,
        waiting=share(waited),
        absent=absent,
        throttled=share(_difference(last.throttled, first.throttled)),
        memory_stall=share(_difference(last.memory_stall, first.memory_stall)),
        faults=max(0, last.faults - first.faults),
    )


class Load(NamedTuple):
    """Fractions of all processors that this process could not use."""

    steal: float
    """Fraction that other virtual machines took."""
    others: float
    """Fraction that other processes of this machine used."""
    unsure: float
    """Both may be too high by this."""


def load(first: Machine, last: Machine, tick: float) -> Load | None:
    """Return the load of others between two readings; None if the readings are inconsistent.

    Other processes used the time that was neither idle, nor stolen, nor used by this process. Idle
    time is exact up to rounding, so short bursts are included.

    Args:
        first: the earlier reading.
        last: the later reading.
        tick: seconds of a tick.
    """
    wall = last.at - first.at
    processors = last.processors
    if wall <= 0 or first.processors != processors:
        return None
    whole = wall * processors
    # In a container, the file may be for another number of processors; then the total is wrong by
    # more than 20 % and the rounding of ticks.
    if abs(last.total - first.total - whole) > 0.2 * whole + TICKS * processors * tick:
        return None
    idle, steal = max(0.0, last.idle - first.idle), max(0.0, last.steal - first.steal)
    others = max(0.0, whole - idle - steal - (last.process_s - first.process_s))
    return Load(min(1.0, steal / whole), others / whole, TICKS * tick / wall)


def _difference(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def reason(shares: Shares, *, alone: bool = True, on_gpu: bool = False) -> str:
    """Return what disturbed a stretch of time, in a few words; "" if nothing did.

    Args:
        shares: what happened during the stretch.
        alone: whether there is a processor for each thread; otherwise threads wait for each other,
            so `waiting` is ignored.
        on_gpu: whether the GPU does the work; then the measuring thread may sleep, so its absence
            and the load of other processes are ignored.
    """
    others_limit = OTHERS + shares.unsure
    steal_limit = LIMIT + shares.unsure
    causes = (
        (THROTTLED, shares.throttled, LIMIT),
        ("memory ran short", shares.memory_stall, LIMIT),
        ("pages read from disk", float(shares.faults), 0.0),
        (WAITED, shares.waiting if alone else None, LIMIT),
        ("its processor was taken away", None if on_gpu else shares.absent, LIMIT),
        ("processor taken by another virtual machine", shares.steal, steal_limit),
        ("load of other processes", None if on_gpu else shares.other_load, others_limit),
    )
    for words, share, limit in causes:
        if share is not None and share > limit:
            return words
    return shares.gpu


def with_quota(words: str, threads: int) -> str:
    """Return the words of `reason`, with the processor quota if it is lower than `threads`."""
    quota = cpu_quota()
    if words not in (THROTTLED, WAITED) or quota is None or quota >= threads:
        return words
    return f"{words}: a quota of {quota:.3g} processors for {threads} threads"


def largest_loss(shares: Shares, *, alone: bool = True, on_gpu: bool = False) -> float:
    """Return the largest fraction of time lost to one cause; arguments are those of `reason`."""
    losses = (
        shares.waiting if alone else None,
        None if on_gpu else shares.absent,
        shares.throttled,
    )
    return max((share for share in losses if share is not None), default=0.0)


def quartile_ratio(samples: Sequence[float]) -> float:
    """Return upper / lower quartile by rank: of 10 samples, third largest / third smallest."""
    ordered = sorted(samples)
    cut = len(ordered) // 4
    return ordered[len(ordered) - 1 - cut] / ordered[cut]


def scatter_reason(samples: Sequence[float]) -> str:
    """Return a reason if samples differ so much that their median is unreliable; else ""."""
    ratio = quartile_ratio(samples)
    return f"quartiles differ by a factor of {ratio:.1f}" if ratio > SPREAD else ""


def mean_shares(parts: Sequence[Shares]) -> Shares:
    """Return the mean shares of several stretches, weighted by their seconds."""
    seconds = sum(part.seconds for part in parts)

    def mean(shares: Sequence[float | None]) -> float | None:
        values = [share for share in shares if share is not None]
        if len(values) < len(parts):
            return None
        return sum(s * part.seconds for s, part in zip(values, parts, strict=True)) / seconds

    return Shares(
        seconds=seconds,
        processor=mean([part.processor for part in parts]) or 0.0,  # never unknown
        waiting=mean([part.waiting for part in parts]),
        absent=mean([part.absent for part in parts]),
        throttled=mean([part.throttled for part in parts]),
        memory_stall=mean([part.memory_stall for part in parts]),
        faults=sum(part.faults for part in parts),
        steal=mean([part.steal for part in parts]),
        other_load=mean([part.other_load for part in parts]),
        unsure=median(part.unsure for part in parts),
    )

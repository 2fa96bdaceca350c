"""Whether a sample was disturbed, by what the machine did meanwhile, and whether samples agree.

A sample is disturbed if the machine's counters (`lra.runners.measurement.witnesses`), read before
and after it, show that it lost more than a limit of its time, for example to waiting for a
processor. Samples may also differ widely although no counter explains it (`scatter_reason`). A
sample is dropped only for what the counters show, never because it was slow: that would bias the
result. Torch-free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from lra.conf.processors import cpu_quota
from lra.runners.measurement.witnesses import Machine, ProcessTimes

LIMIT = 0.1
"""Fraction of the wall clock that one sample may lose to any one cause."""
MEDIAN_LIMIT = 0.05
"""The same for the median over the retained samples: by this a reported time may be too long."""
TURN_S = 50e-6
"""Seconds that a woken thread waits for a processor, at most, on an idle machine."""
OTHERS = 0.05
"""Fraction of all processors that other processes may use: services, the parent of the sweep."""
TICKS = 2
"""Ticks by which `/proc/stat` and the clock of a process may disagree, at the ends of a stretch."""
THROTTLED, WAITED = "held back by the container's limit", "waited for a processor"
"""Reasons that a processor quota below the number of threads may cause: see `with_quota`."""
SPREAD = 2.0
"""Largest ratio of upper to lower quartile for samples of one call. Undisturbed samples differ by a
few hundredths, except for calls below a millisecond that use several threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What happened during one stretch of time, as fractions of its wall clock; None: unknown."""

    seconds: float
    processor: float
    """Processor time of the process, in seconds per second: up to the number of threads."""
    thread: float = 0.0
    """The same of the measuring thread alone: up to 1."""
    waiting: float | None = None
    """Threads were ready and had no processor; summed over threads, so it may exceed 1."""
    absent: float | None = None
    """The measuring thread neither ran nor waited for a processor: it was stopped, or read."""
    throttled: float | None = None
    memory_stall: float | None = None
    faults: int = 0
    steal: float | None = None
    """Of all processors: taken by other virtual machines."""
    other_load: float | None = None
    """Of all processors: used by other processes."""
    unsure: float = 0.0
    """By how much `steal` and `other_load` may be too high: ticks are coarse."""
    gpu: str = ""
    """What disturbed the GPU, if anything."""


def shares_between(first: ProcessTimes, last: ProcessTimes) -> Shares:
    """Return the shares of this process between two readings.

    `TURN_S` seconds are subtracted from `waiting` for each wake-up of a thread: many short parallel
    regions cause many such waits on an undisturbed machine, too.
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
    """Fractions of all processors that others used."""

    steal: float
    """By other virtual machines."""
    others: float
    """By other processes of this machine."""
    unsure: float
    """By how much either may be too high."""


def load(first: Machine, last: Machine, tick: float) -> Load | None:
    """Return what others used between two readings; None if the readings are inconsistent.

    The time of other processes is the time that was neither idle, nor stolen, nor ours. Idle time
    is counted exactly and rounded to ticks, so bursts between two ticks are included.

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
    # a container may show a file of its own, or one for another number of processors
    if abs(last.total - first.total - whole) > 0.2 * whole + TICKS * processors * tick:
        return None
    idle, steal = max(0.0, last.idle - first.idle), max(0.0, last.steal - first.steal)
    others = max(0.0, whole - idle - steal - (last.process_s - first.process_s))
    return Load(min(1.0, steal / whole), others / whole, TICKS * tick / wall)


def _difference(last: float | None, first: float | None) -> float | None:
    return None if last is None or first is None else last - first


def reason(shares: Shares, *, alone: bool = True, on_gpu: bool = False) -> str:
    """Say in a few words what disturbed a stretch; "" if no counter shows anything.

    Args:
        shares: what happened during the stretch.
        alone: whether there are no more threads than processors; otherwise threads wait for one
            another, so `waiting` is ignored.
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
    """Add the processor quota to the words of `reason`, if it is lower than `threads`."""
    quota = cpu_quota()
    if words not in (THROTTLED, WAITED) or quota is None or quota >= threads:
        return words
    return f"{words}: a quota of {quota:.3g} processors for {threads} threads"


def largest_loss(shares: Shares, *, alone: bool = True, on_gpu: bool = False) -> float:
    """Return the largest fraction of its time that a stretch lost; arguments as for `reason`."""
    losses = (
        shares.waiting if alone else None,
        None if on_gpu else shares.absent,
        shares.throttled,
    )
    return max((share for share in losses if share is not None), default=0.0)


def quartile_ratio(samples: Sequence[float]) -> float:
    """Return the upper over the lower quartile, by ranks: of 10 samples the third from each end."""
    ordered = sorted(samples)
    cut = len(ordered) // 4
    return ordered[len(ordered) - 1 - cut] / ordered[cut]


def scatter_reason(samples: Sequence[float]) -> str:
    """Say that samples of one call differ so much that their median is unreliable; "" if not."""
    ratio = quartile_ratio(samples)
    return f"quartiles differ by a factor of {ratio:.1f}" if ratio > SPREAD else ""


def mean_shares(parts: Sequence[Shares]) -> Shares:
    """Return the shares of all stretches together, each weighed by its seconds."""
    seconds = sum(part.seconds for part in parts)

    def mean(shares: Sequence[float | None]) -> float | None:
        values = [share for share in shares if share is not None]
        if len(values) < len(parts):
            return None
        return sum(s * part.seconds for s, part in zip(values, parts, strict=True)) / seconds

    return Shares(
        seconds=seconds,
        processor=mean([part.processor for part in parts]) or 0.0,
        waiting=mean([part.waiting for part in parts]),
        absent=mean([part.absent for part in parts]),
        throttled=mean([part.throttled for part in parts]),
        memory_stall=mean([part.memory_stall for part in parts]),
        faults=sum(part.faults for part in parts),
        steal=mean([part.steal for part in parts]),
        other_load=mean([part.other_load for part in parts]),
        unsure=median(part.unsure for part in parts),
    )

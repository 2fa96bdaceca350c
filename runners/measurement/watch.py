"""Watches the machine while a cell is timed, and repeats the samples that it disturbed."""

import importlib
import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from lra.runners.measurement.disturbance import (
    MEDIAN_LIMIT,
    OTHERS,
    Load,
    Shares,
    largest_loss,
    load,
    mean_shares,
    reason,
    shares_between,
    with_quota,
)
from lra.runners.measurement.witnesses import Counters, Machine, ProcessTimes, clock_hertz

HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of `nvmlDeviceGetCurrentClocksThrottleReasons` that make the same work slower."""


class GpuWatch:
    """One GPU. Which numbers it does not give is up to its driver: those are None or empty.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def _asked(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def others(self) -> int | None:
        """Return how many other processes compute on the GPU; None where it does not say.

        In a container process numbers are another machine's: then one of them is ours.
        """
        processes = self._asked("nvmlDeviceGetComputeRunningProcesses")
        if processes is None:
            return None
        numbers = {process.pid for process in processes}
        return max(0, len(numbers) - 1) if os.getpid() not in numbers else len(numbers) - 1

    def clock_hertz(self) -> float | None:
        """Return the clock of the multiprocessors now."""
        megahertz = self._asked("nvmlDeviceGetClockInfo", getattr(self._nvml, "NVML_CLOCK_SM", 1))
        return None if megahertz is None else megahertz * 1e6

    def disturbed(self) -> str:
        """Say what disturbs the GPU now; "" if nothing does, or it does not say."""
        if self.others():
            return "other processes on the GPU"
        bits = self._asked("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        named = [name for bit, name in HELD_BACK.items() if bits & bit]
        return f"GPU clock lowered: {named[0]}" if named else ""


def gpu_watch(device: torch.device) -> GpuWatch | None:
    """Return the watch of a device; None without the library `nvidia-ml-py` or its driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        # NVML counts all GPUs of the machine, PyTorch those that CUDA_VISIBLE_DEVICES shows
        identity = torch.cuda.get_device_properties(device).uuid
        return GpuWatch(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}"))
    except (nvml.NVMLError, AttributeError, RuntimeError):
        return None


STRETCHES_S = (0.06, 0.25)
"""Load of others is judged over so long at least, back from a sample's end: ticks are 10 ms. The
short one sees what has just begun, if it is much; the long one sees less, if it lasts. By the long
one a sample is judged that fell between two waits, or between two stretches in which the process
was held back: it ran with cold caches and a low clock."""
FRESH_S = 0.02
"""A younger reading of the machine is good enough: its file is long where processors are many."""
PAUSE_S = 0.05
"""Between looks whether a load has passed."""
LEAST_REPEAT_S, REPEAT_TIMES = 1.0, 2.0
"""Repeats may take so many seconds, or so many times what the rounds asked for took."""
LEAST_SHARE, LEAST_TAKEN = 1 / 2, 2 / 3
"""Where fewer of the rounds asked for, or of those taken, are undisturbed, all are kept and marked:
on a machine that is disturbed so often, what lies between runs with cold caches."""
LEAST_ROUNDS = 3
WAIT_S = 2.0
"""A load that lasts longer is not waited for: no repeated sample would be a quiet one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The seconds of one call, and what the machine did meanwhile."""

    seconds: float
    shares: Shares
    reason: str
    """What disturbed it; "" for nothing."""
    on_gpu: bool = False

    def processor_s(self, threads: int) -> float:
        """Return what a thread of the call had of the processors: its time without waits.

        Those of all threads over their number, or those of the measuring thread where they are
        more: not every operation uses all threads. On a GPU they say nothing of its work.
        """
        return self.shares.seconds * max(self.shares.thread, self.shares.processor / threads)

    def computed_s(self, threads: int) -> float:
        """Return the seconds that the call took, without its waits where something disturbed it."""
        alone = not self.reason or self.on_gpu
        return self.seconds if alone else min(self.seconds, self.processor_s(threads))


Round = Mapping[str, Sample]
"""One sample of each call, neighbours in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of samples, repeated where the machine disturbed them."""

    retained: list[Round]
    """The undisturbed ones, in the order taken; every one where these are too few."""
    every: list[Round]
    disturbed: str = ""
    """Why what is kept is not to be trusted; "" where it is."""
    unwatched: tuple[str, ...] = ()
    """What could not be watched."""
    threads: int = 1
    clock: float | None = None
    """Of the processors or the GPU, at the end / at the beginning; None: not watched."""

    def samples(self, name: str) -> tuple[float, ...]:
        """Return the seconds of one call in the rounds that are kept."""
        return tuple(turn[name].seconds for turn in self.retained)

    def processor_samples(self, name: str) -> tuple[float, ...]:
        """Return what the processors' clock gave the same calls; nothing on a GPU."""
        samples = [turn[name] for turn in self.retained]
        taken = tuple(sample.processor_s(self.threads) for sample in samples)
        return taken if all(taken) and not any(sample.on_gpu for sample in samples) else ()

    @property
    def discarded(self) -> int:
        """How many rounds are left out."""
        return len(self.every) - len(self.retained)

    @property
    def shares(self) -> Shares:
        """What the machine did over all rounds, those left out included."""
        return mean_shares([sample.shares for turn in self.every for sample in turn.values()])


class Watch:
    """Looks at the machine from now on: load is judged over a stretch, so make it early.

    Args:
        device: where the work is done.
        counters: the system's; by default those of this process.
        gpu: the GPU's; by default those of `device`, where they can be had.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        counters: Counters | None = None,
        gpu: GpuWatch | None = None,
    ) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.threads = torch.get_num_threads()
        self._counters = Counters() if counters is None else counters
        self._gpu = gpu_watch(device) if gpu is None and self.on_gpu else gpu
        self._trail: deque[Machine] = deque()
        self._past: deque[ProcessTimes] = deque()
        self._look()
        self._before(self._counters.process_times())

    def _look(self) -> None:
        """Read the machine, unless that was done just now; forget what is long past."""
        trail = self._trail
        if trail and time.perf_counter() - trail[-1].at < FRESH_S:
            return
        machine = self._counters.machine()
        if machine is None:
            return
        trail.append(machine)
        while len(trail) > 1 and trail[1].at < machine.at - STRETCHES_S[-1] - FRESH_S:
            trail.popleft()

    def _load(self, begin: float) -> Load | None:
        """Return what others had since `begin`, or longer where that is too short to tell."""
        self._look()
        if not self._trail:
            return None
        last, loads = self._trail[-1], []
        for stretch in STRETCHES_S:
            since = min(begin, last.at - stretch)
            first = max((m for m in self._trail if m.at <= since), default=self._trail[0])
            loads.append(load(first, last, self._counters.tick))
        measured = [one for one in loads if one is not None]
        return max(measured, key=lambda one: max(one.others, one.steal) - one.unsure, default=None)

    def _before(self, now: ProcessTimes) -> str:
        """Say what kept this process waiting for a while until `now`, pauses included; or "".

        Between samples a thread may sleep, and a process read files: only waits for a processor
        and the container's limit are looked at.
        """
        past = self._past
        if not past or now.at - past[-1].at >= FRESH_S:
            past.append(now)
        while len(past) > 1 and past[1].at <= now.at - STRETCHES_S[-1]:
            past.popleft()
        shares = replace(shares_between(past[0], now), absent=None, memory_stall=None, faults=0)
        return with_quota(reason(shares, alone=self._alone()), self.threads)

    def sample(self, timed: Callable[[], float]) -> Sample:
        """Time something, and look at the machine before and after it.

        Args:
            timed: does it, and returns the seconds.
        """
        self._look()
        first = self._counters.process_times()
        seconds = timed()
        last = self._counters.process_times()
        shares = shares_between(first, last)
        if (others := self._load(first.at)) is not None:
            shares = replace(
                shares, steal=others.steal, other_load=others.others, unsure=others.unsure
            )
        if self._gpu is not None:
            shares = replace(shares, gpu=self._gpu.disturbed())
        before = self._before(last)
        words = reason(shares, alone=self._alone(), on_gpu=self.on_gpu)
        words = with_quota(words, self.threads) or before
        return Sample(seconds=seconds, shares=shares, reason=words, on_gpu=self.on_gpu)

    def _alone(self) -> bool:
        """Tell whether every thread can have a processor: others wait for one another."""
        return not self._trail or self.threads <= self._trail[-1].processors

    def rounds(self, take: Callable[[int], Round], count: int, *, repeat_s: float) -> Rounds:
        """Take rounds of samples, and repeat those that the machine disturbed, within a budget.

        Args:
            take: takes one round; gets the number of rounds before it.
            count: how many undisturbed rounds. At most as many are taken in addition.
            repeat_s: wall clock for these in seconds, a wait for quiet included; 0: none. Less
                where the rounds asked for were short.
        """
        return self.rounds_of(lambda number, _: take(number), [None], count, repeat_s=repeat_s)[0]

    def rounds_of(
        self,
        take: Callable[[int, Collection[str] | None], Round],
        parts: Sequence[Collection[str] | None],
        count: int,
        *,
        repeat_s: float,
    ) -> list[Rounds]:
        """Take rounds as `rounds` does, for several comparisons at once, each judged by itself.

        Args:
            take: takes one round, of the calls of these names; None: of all.
            parts: names of the calls of each comparison. What is disturbed in one of them is
                repeated for that one.
            count: how many undisturbed rounds of each.
            repeat_s: of each.
        """
        clock, begun = self._clock(), time.perf_counter()
        first = [take(number, None) for number in range(count)]
        every = [[_within(turn, part) for turn in first] for part in parts]
        now = time.perf_counter()
        repeat_s = min(len(parts) * repeat_s, max(LEAST_REPEAT_S, REPEAT_TIMES * (now - begun)))
        end, number, waited = now + repeat_s, count, False

        def lacking() -> list[int]:
            return [
                at
                for at, turns in enumerate(every)
                if _undisturbed(turns) < count and len(turns) < 2 * count
            ]

        while short := lacking():
            wanted = [part for at in short if (part := parts[at]) is not None]
            names = (
                {name for part in wanted for name in part} if len(wanted) == len(short) else None
            )
            if not waited:
                waited, looked = True, time.perf_counter()
                if not self._becomes_quiet(now + min(WAIT_S, repeat_s / 2)):
                    break
                if time.perf_counter() - looked >= PAUSE_S:
                    take(count, names)  # caches have cooled
            if time.perf_counter() + max(_seconds(_within(turn, names)) for turn in first) > end:
                break
            turn = take(number, names)
            number += 1
            for at in short:
                every[at].append(_within(turn, parts[at]))
        return [self.judged(turns, count, clock) for turns in every]

    def judged(self, every: list[Round], count: int, clock: float | None = None) -> Rounds:
        """Keep the undisturbed rounds where they are enough, and all of them otherwise.

        Args:
            every: the rounds that were taken.
            count: how many undisturbed ones.
            clock: in hertz, before the first.
        """
        clean = [turn for turn in every if not cause(turn)]
        least = math.ceil(max(LEAST_SHARE * count, LEAST_TAKEN * len(every)))
        enough = len(clean) >= max(LEAST_ROUNDS, least)
        after = self._clock() if clock else None
        last = [*every[-1].values()][-1]
        return Rounds(
            retained=clean if enough else every,
            every=every,
            disturbed=self._typically_lost(clean) if enough else _most(every),
            unwatched=self._unwatched(last.shares),
            threads=self.threads,
            clock=after / clock if clock and after else None,
        )

    def _typically_lost(self, retained: list[Round]) -> str:
        """Say that of some call the median sample lost too much, each one a little; or ""."""
        for name in retained[0]:
            shares = [turn[name].shares for turn in retained]
            share = median(largest_loss(s, alone=self._alone(), on_gpu=self.on_gpu) for s in shares)
            if share > MEDIAN_LIMIT:
                return f"the median sample lost {share:.0%} of its time"
        return ""

    def _becomes_quiet(self, until: float) -> bool:
        """Sleep while others load the machine; return whether they stopped in time."""
        while not self.on_gpu:
            others = self._load(time.perf_counter())
            loaded = others is not None and others.others > OTHERS + others.unsure
            if not self._before(self._counters.process_times()) and not loaded:
                break
            if time.perf_counter() + PAUSE_S >= until:
                return False
            time.sleep(PAUSE_S)
        return True

    def _clock(self) -> float | None:
        return clock_hertz() if self._gpu is None else self._gpu.clock_hertz()

    def _unwatched(self, shares: Shares) -> tuple[str, ...]:
        names = {
            "waiting for a processor": shares.waiting,
            "limits of the container": shares.throttled,
            "memory pressure": shares.memory_stall,
            "steal and other processes": shares.other_load,
        }
        missing = [name for name, share in names.items() if share is None]
        if self.on_gpu and self._gpu is None:
            missing.append("the GPU (pip install nvidia-ml-py)")
        return tuple(missing)


def cause(turn: Round) -> str:
    """Return what disturbed a round: of its samples, the first that was."""
    return next((sample.reason for sample in turn.values() if sample.reason), "")


def _within(turn: Round, names: Collection[str] | None) -> Round:
    return turn if names is None else {name: turn[name] for name in names}


def _seconds(turn: Round) -> float:
    return sum(sample.shares.seconds for sample in turn.values())


def _undisturbed(every: list[Round]) -> int:
    return sum(not cause(turn) for turn in every)


def _most(every: list[Round]) -> str:
    """Return the commonest cause, and how many rounds were disturbed."""
    causes = Counter(filter(None, map(cause, every)))
    return f"{causes.most_common(1)[0][0]} ({causes.total()} of {len(every)} samples)"

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
    """Reads the state of one GPU. Numbers that its driver does not give are None or empty.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: NVML's handle of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def _query(self, name: str, *arguments: Any) -> Any:
        """Return what NVML's function `name` says of the device; None if it refuses."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def others(self) -> int | None:
        """Return how many other processes compute on the GPU; None if unknown.

        In a container, process numbers differ from those of the driver; one of them is still ours.
        """
        processes = self._query("nvmlDeviceGetComputeRunningProcesses")
        if processes is None:
            return None
        numbers = {process.pid for process in processes}
        return max(0, len(numbers) - 1) if os.getpid() not in numbers else len(numbers) - 1

    def clock_hertz(self) -> float | None:
        """Return the clock of the multiprocessors now."""
        megahertz = self._query("nvmlDeviceGetClockInfo", getattr(self._nvml, "NVML_CLOCK_SM", 1))
        return None if megahertz is None else megahertz * 1e6

    def disturbed(self) -> str:
        """Say what disturbs the GPU now; "" if nothing does, or it does not say."""
        if self.others():
            return "other processes on the GPU"
        bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
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
"""The load of others is measured over at least these times, back from a sample's end, because its
counters have ticks of 10 ms. The short one finds a high load that has just begun; the long one
finds a lower load that lasts. The long one also judges whether the process had to wait just before
a sample, which then ran with cold caches and a low clock."""
FRESH_S = 0.02
"""A reading of the machine's counters that is younger is used again, because reading them is slow
on machines with many processors."""
PAUSE_S = 0.05
"""Seconds between two checks whether a load has ended."""
LEAST_REPEAT_S, REPEAT_TIMES = 1.0, 2.0
"""Repeats may take this many seconds, or this many times the time of the requested rounds:
whichever is more."""
LEAST_SHARE, LEAST_TAKEN = 1 / 2, 2 / 3
"""The undisturbed rounds must be at least these fractions of the requested and of the taken rounds.
If they are fewer, all rounds are retained and marked: on a machine that is disturbed so often, even
undisturbed rounds run with cold caches."""
LEAST_ROUNDS = 3
WAIT_S = 2.0
"""Most seconds to wait for a load to end; under a lasting load, repeats would be disturbed, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The seconds of one call, and what the machine did meanwhile."""

    seconds: float
    shares: Shares
    reason: str
    """What disturbed it; "" for nothing."""
    on_gpu: bool = False

    def processor_s(self, threads: int) -> float:
        """Return the processor seconds of one thread of the call: its time without waits.

        This is the mean over `threads`, or the time of the measuring thread if that is more,
        because some operations use one thread only. It says nothing about the work of a GPU.
        """
        return self.shares.seconds * max(self.shares.thread, self.shares.processor / threads)

    def computed_s(self, threads: int) -> float:
        """Return the seconds that the call took; if it was disturbed, without its waits."""
        is_clean = not self.reason or self.on_gpu
        return self.seconds if is_clean else min(self.seconds, self.processor_s(threads))


Round = Mapping[str, Sample]
"""One sample of each call, neighbours in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of samples, repeated where the machine disturbed them."""

    retained: list[Round]
    """The undisturbed rounds, in the order taken; all rounds if these are too few."""
    every: list[Round]
    """All rounds that were taken."""
    disturbed: str = ""
    """Why the retained rounds are unreliable; "" if they are reliable."""
    unwatched: tuple[str, ...] = ()
    """Names of what could not be watched."""
    threads: int = 1
    clock: float | None = None
    """Clock rate of the processors or the GPU at the end / at the beginning; None: unknown."""

    def samples(self, name: str) -> tuple[float, ...]:
        """Return the seconds of the call `name` in the retained rounds."""
        return tuple(turn[name].seconds for turn in self.retained)

    def processor_samples(self, name: str) -> tuple[float, ...]:
        """Return the processor seconds of the same calls: see `Sample.processor_s`; () on a GPU."""
        samples = [turn[name] for turn in self.retained]
        taken = tuple(sample.processor_s(self.threads) for sample in samples)
        return taken if all(taken) and not any(sample.on_gpu for sample in samples) else ()

    @property
    def discarded(self) -> int:
        """How many rounds are excluded."""
        return len(self.every) - len(self.retained)

    @property
    def shares(self) -> Shares:
        """The mean shares of all rounds, the excluded ones too."""
        return mean_shares([sample.shares for turn in self.every for sample in turn.values()])


class Watch:
    """Times calls and watches the machine; create it early, as load is measured from then on.

    Args:
        device: where the work is done.
        counters: counters of the system; None: those of this process.
        gpu: state of the GPU; None: that of `device`, if it is a GPU whose driver gives it.
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
        """Read the machine's counters, unless the last reading is fresh; drop old readings."""
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
        """Return the load of others since `begin`, or over the `STRETCHES_S` if they are longer."""
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
        """Say what kept this process waiting in the last quarter of a second until `now`; or "".

        This time includes pauses between samples, in which threads may sleep and files may be
        read. So only waits for a processor and the container's limit count.
        """
        past = self._past
        if not past or now.at - past[-1].at >= FRESH_S:
            past.append(now)
        while len(past) > 1 and past[1].at <= now.at - STRETCHES_S[-1]:
            past.popleft()
        shares = replace(shares_between(past[0], now), absent=None, memory_stall=None, faults=0)
        return with_quota(reason(shares, alone=self._alone()), self.threads)

    def sample(self, timed: Callable[[], float]) -> Sample:
        """Time one call, and read the machine's counters before and after it.

        Args:
            timed: makes the call and returns its seconds.
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
        """Tell whether each thread can have a processor; if not, threads wait for one another."""
        return not self._trail or self.threads <= self._trail[-1].processors

    def rounds(self, take: Callable[[int], Round], count: int, *, repeat_s: float) -> Rounds:
        """Take rounds of samples, and repeat those that the machine disturbed, within a budget.

        Args:
            take: takes one round; its argument is the number of rounds before it.
            count: how many undisturbed rounds are requested. At most as many are taken in addition.
            repeat_s: most seconds for these additional rounds, waiting included; 0: none are
                taken. It is lowered if the requested rounds were short (`REPEAT_TIMES`).
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
            take: takes one round of the calls with these names; None: of all calls. Its first
                argument is the number of rounds before it.
            parts: names of the calls of each comparison; None: all calls. A round that is
                disturbed in one comparison is repeated for that one.
            count: how many undisturbed rounds are requested for each comparison.
            repeat_s: most seconds for additional rounds, for each comparison.
        """
        clock, begun = self._clock(), time.perf_counter()
        first = [take(number, None) for number in range(count)]
        every = [[_within(turn, part) for turn in first] for part in parts]
        now = time.perf_counter()
        repeat_s = min(len(parts) * repeat_s, max(LEAST_REPEAT_S, REPEAT_TIMES * (now - begun)))
        end, number, waited = now + repeat_s, count, False

        def lacking() -> list[int]:  # which comparisons need another round and may have one
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
        """Retain the undisturbed rounds if they are enough, and all rounds otherwise.

        Args:
            every: the rounds that were taken.
            count: how many undisturbed rounds were requested.
            clock: clock rate in hertz before the first round; None: unknown.
        """
        clean = [turn for turn in every if not cause(turn)]
        least = math.ceil(max(LEAST_SHARE * count, LEAST_TAKEN * len(every)))
        enough = len(clean) >= max(LEAST_ROUNDS, least)
        after = self._clock() if clock else None
        last = [*every[-1].values()][-1]
        return Rounds(
            retained=clean if enough else every,
            every=every,
            disturbed=self._median_loss(clean) if enough else _commonest_cause(every),
            unwatched=self._unwatched(last.shares),
            threads=self.threads,
            clock=after / clock if clock and after else None,
        )

    def _median_loss(self, retained: list[Round]) -> str:
        """Say how much the median sample of a call lost, if more than `MEDIAN_LIMIT`; or "".

        No single sample may be disturbed, and yet each may have lost a little.
        """
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
        """Return names of the counters that this system does not have."""
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
    """Return the reason of the first disturbed sample in a round; "" if there is none."""
    return next((sample.reason for sample in turn.values() if sample.reason), "")


def _within(turn: Round, names: Collection[str] | None) -> Round:
    return turn if names is None else {name: turn[name] for name in names}


def _seconds(turn: Round) -> float:
    return sum(sample.shares.seconds for sample in turn.values())


def _undisturbed(every: list[Round]) -> int:
    return sum(not cause(turn) for turn in every)


def _commonest_cause(every: list[Round]) -> str:
    """Return the commonest cause in words, and how many rounds were disturbed."""
    causes = Counter(filter(None, map(cause, every)))
    return f"{causes.most_common(1)[0][0]} ({causes.total()} of {len(every)} samples)"

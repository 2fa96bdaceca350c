"""Watches the machine while a run is timed, and repeats samples that the machine disturbed."""

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
"""Why the GPU lowers its clock: bits of `nvmlDeviceGetCurrentClocksThrottleReasons`."""


class GpuWatch:
    """Reads the state of one GPU. A number is None if the driver does not report it.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: NVML's handle of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def _query(self, name: str, *arguments: Any) -> Any:
        """Return the result of NVML's function `name` for the device; None if it fails."""
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def others(self) -> int | None:
        """Return how many other processes compute on the GPU; None if unknown.

        This process is subtracted. In a container the driver knows it by another number; then it is
        taken to be one of those that the driver counts, if there are any.
        """
        processes = self._query("nvmlDeviceGetComputeRunningProcesses")
        if processes is None:
            return None
        numbers = {process.pid for process in processes}
        return max(0, len(numbers) - 1) if os.getpid() not in numbers else len(numbers) - 1

    def clock_hertz(self) -> float | None:
        """Return the present clock rate of the multiprocessors."""
        megahertz = self._query("nvmlDeviceGetClockInfo", getattr(self._nvml, "NVML_CLOCK_SM", 1))
        return None if megahertz is None else megahertz * 1e6

    def disturbed(self) -> str:
        """Return what disturbs the GPU now; "" if nothing does, or the driver does not say."""
        if self.others():
            return "other processes on the GPU"
        bits = self._query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        causes = [name for bit, name in HELD_BACK.items() if bits & bit]
        return f"GPU clock lowered: {causes[0]}" if causes else ""


def gpu_watch(device: torch.device) -> GpuWatch | None:
    """Return a `GpuWatch` of a device; None without the library `nvidia-ml-py` or its driver."""
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
"""The load of other processes is measured over these two stretches of time before the end of a
sample (or longer), because its counters have ticks of 10 ms. The short one finds a high load that
has just begun, the long one a lower load that lasts. The long one also shows whether the process
had to wait just before a sample, which then ran with cold caches and a low clock."""
FRESH_S = 0.02
"""Counters of the machine are read again only after so many seconds, because reading them is slow
on machines with many processors."""
PAUSE_S = 0.05
"""Seconds between two checks whether a load has ended."""
LEAST_REPEAT_S, REPEAT_TIMES = 1.0, 2.0
"""Repeats may take this many seconds, or this many times the time of the requested rounds:
whichever is more."""
LEAST_SHARE, LEAST_TAKEN = 1 / 2, 2 / 3
"""Undisturbed rounds must be at least these fractions of the requested and of the taken rounds. If
they are fewer, all rounds are retained and marked, because on such a machine even undisturbed
rounds run with cold caches."""
LEAST_ROUNDS = 3  # a median needs so many
WAIT_S = 2.0
"""Repeats wait at most so many seconds until a load ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The seconds of one call, and what the machine did meanwhile."""

    seconds: float
    shares: Shares
    reason: str
    """What disturbed the call; "" for nothing."""
    on_gpu: bool = False

    def processor_s(self, threads: int) -> float:
        """Return the processor time of the call: its time without waits.

        This is the mean over `threads`, or the time of the measuring thread if that is more,
        because some operations use only one thread. It excludes the work of a GPU.
        """
        return self.shares.seconds * max(self.shares.thread, self.shares.processor / threads)

    def computed_s(self, threads: int) -> float:
        """Return the seconds of the call; if it was disturbed, its processor time."""
        is_clean = not self.reason or self.on_gpu
        return self.seconds if is_clean else min(self.seconds, self.processor_s(threads))


Round = Mapping[str, Sample]
"""One sample of each call, by its name; the calls follow each other in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Rounds of samples; those that the machine disturbed were repeated."""

    retained: list[Round]
    """The undisturbed rounds in the order of time; all rounds if too few are undisturbed."""
    every: list[Round]
    """All rounds that were taken."""
    disturbed: str = ""
    """Why the retained rounds are unreliable; "" if they are reliable."""
    unwatched: tuple[str, ...] = ()
    """Names of disturbances that could not be observed."""
    threads: int = 1
    clock: float | None = None
    """Clock rate of processors or GPU at the end, divided by that at the start; None: unknown."""

    def samples(self, name: str) -> tuple[float, ...]:
        """Return the seconds of the call `name` in the retained rounds."""
        return tuple(turn[name].seconds for turn in self.retained)

    def processor_samples(self, name: str) -> tuple[float, ...]:
        """Return the processor time of the same calls (`Sample.processor_s`); () on a GPU."""
        samples = [turn[name] for turn in self.retained]
        seconds = tuple(sample.processor_s(self.threads) for sample in samples)
        return seconds if all(seconds) and not any(sample.on_gpu for sample in samples) else ()

    @property
    def discarded(self) -> int:
        """Return how many rounds are excluded."""
        return len(self.every) - len(self.retained)

    @property
    def shares(self) -> Shares:
        """Return the mean shares of all rounds, including excluded ones."""
        return mean_shares([sample.shares for turn in self.every for sample in turn.values()])


class Watch:
    """Times calls and watches the machine. Create it early, because load is measured from then on.

    Args:
        device: the device of the calls.
        counters: counters of the system; None: new ones of this process.
        gpu: state of the GPU; None: the state of `device`, if it is a GPU with a driver.
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
        # Readings of the machine and of this process over a quarter of a second, oldest first.
        self._trail: deque[Machine] = deque()
        self._past: deque[ProcessTimes] = deque()
        self._look()  # the first readings
        self._wait_before(self._counters.process_times())

    def _look(self) -> None:
        """Read the counters of the machine if the last reading is old; drop very old readings."""
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
        """Return the largest load of other processes over `STRETCHES_S`, or since `begin`.

        A stretch that is shorter than the time since `begin` is extended to `begin`.
        """
        self._look()
        if not self._trail:
            return None
        last, loads = self._trail[-1], []
        for stretch in STRETCHES_S:
            since = min(begin, last.at - stretch)
            first = max((m for m in self._trail if m.at <= since), default=self._trail[0])
            loads.append(load(first, last, self._counters.tick))
        known = [each for each in loads if each is not None]
        return max(known, key=lambda each: max(each.others, each.steal) - each.unsure, default=None)

    def _wait_before(self, now: ProcessTimes) -> str:
        """Return what made this process wait in the quarter of a second before `now`; or "".

        Threads may sleep or read files between samples. So only waits for a processor and waits
        for the limit of a container count.
        """
        past = self._past
        if not past or now.at - past[-1].at >= FRESH_S:
            past.append(now)
        while len(past) > 1 and past[1].at <= now.at - STRETCHES_S[-1]:
            past.popleft()
        shares = replace(shares_between(past[0], now), absent=None, memory_stall=None, faults=0)
        return with_quota(reason(shares, alone=self._alone()), self.threads)

    def sample(self, timed: Callable[[], float]) -> Sample:
        """Time one call, and read the counters of the machine before and after it.

        Args:
            timed: function that makes the call and returns its seconds.
        """
        self._look()
        first = self._counters.process_times()
        seconds = timed()
        last = self._counters.process_times()
        shares = shares_between(first, last)
        if (meanwhile := self._load(first.at)) is not None:
            shares = replace(
                shares,
                steal=meanwhile.steal,
                other_load=meanwhile.others,
                unsure=meanwhile.unsure,
            )
        if self._gpu is not None:
            shares = replace(shares, gpu=self._gpu.disturbed())
        wait_before = self._wait_before(last)
        cause_during = reason(shares, alone=self._alone(), on_gpu=self.on_gpu)
        why = with_quota(cause_during, self.threads) or wait_before
        return Sample(seconds=seconds, shares=shares, reason=why, on_gpu=self.on_gpu)

    def _alone(self) -> bool:
        """Return whether there is a processor for each thread, so that threads need not wait."""
        return not self._trail or self.threads <= self._trail[-1].processors

    def rounds(self, take: Callable[[int], Round], count: int, *, repeat_s: float) -> Rounds:
        """Take rounds of samples, and repeat those that the machine disturbed, within a time limit.

        Args:
            take: function that takes one round; its argument is the number of rounds before it.
            count: how many undisturbed rounds are requested; at most as many are repeated.
            repeat_s: most seconds for repeated rounds, waiting included; 0: none is repeated. The
                limit is lower if the requested rounds were short (`REPEAT_TIMES`).
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
        """Take rounds as `rounds` does for several comparisons, which may share calls.

        Args:
            take: function that takes one round. Its arguments are the number of rounds before it,
                and the names of the calls to time; None: all calls.
            parts: names of the calls of each comparison; None: all calls. A round is repeated only
                for the comparisons in which it is disturbed.
            count: how many undisturbed rounds are requested for each comparison.
            repeat_s: most seconds for repeated rounds, for each comparison.
        """
        clock, start = self._clock(), time.perf_counter()
        first = [take(number, None) for number in range(count)]
        rounds_by_part = [[_select(turn, part) for turn in first] for part in parts]
        now = time.perf_counter()
        repeat_s = min(len(parts) * repeat_s, max(LEAST_REPEAT_S, REPEAT_TIMES * (now - start)))
        end, number, has_waited = now + repeat_s, count, False

        def incomplete_parts() -> list[int]:  # comparisons that need and may have another round
            return [
                at
                for at, turns in enumerate(rounds_by_part)
                if _count_undisturbed(turns) < count and len(turns) < 2 * count
            ]

        while incomplete := incomplete_parts():
            wanted = [part for at in incomplete if (part := parts[at]) is not None]
            all_named = len(wanted) == len(incomplete)  # otherwise one of them has all calls
            names = {name for part in wanted for name in part} if all_named else None
            if not has_waited:
                has_waited, wait_start = True, time.perf_counter()
                if not self._becomes_quiet(now + min(WAIT_S, repeat_s / 2)):
                    break
                if time.perf_counter() - wait_start >= PAUSE_S:
                    take(count, names)  # warms the caches again; this round does not count
            longest_s = max(_total_seconds(_select(turn, names)) for turn in first)
            if time.perf_counter() + longest_s > end:
                break
            turn = take(number, names)
            number += 1
            for at in incomplete:
                rounds_by_part[at].append(_select(turn, parts[at]))
        return [self.judged(turns, count, clock) for turns in rounds_by_part]

    def judged(self, every: list[Round], count: int, clock: float | None = None) -> Rounds:
        """Return rounds that retain the undisturbed ones if they are enough, or else all.

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
            disturbed=self._judge_median(clean) if enough else _commonest_cause(every),
            unwatched=self._unwatched(last.shares),
            threads=self.threads,
            clock=after / clock if clock and after else None,
        )

    def _judge_median(self, retained: list[Round]) -> str:
        """Return a reason if the median sample of a call lost more than `MEDIAN_LIMIT`; else "".

        Each sample may have lost too little to be disturbed, but together they are too slow.
        """
        for name in retained[0]:
            shares = [turn[name].shares for turn in retained]
            loss = median(largest_loss(s, alone=self._alone(), on_gpu=self.on_gpu) for s in shares)
            if loss > MEDIAN_LIMIT:
                return f"the median sample lost {loss:.0%} of its time"
        return ""

    def _becomes_quiet(self, until: float) -> bool:
        """Sleep while other processes load the machine; return False if `until` comes first.

        For a GPU, the load of processors is ignored, so True is returned at once.
        """
        while not self.on_gpu:
            load_now = self._load(time.perf_counter())
            is_loaded = load_now is not None and load_now.others > OTHERS + load_now.unsure
            if not self._wait_before(self._counters.process_times()) and not is_loaded:
                break
            if time.perf_counter() + PAUSE_S >= until:
                return False
            time.sleep(PAUSE_S)
        return True

    def _clock(self) -> float | None:
        return clock_hertz() if self._gpu is None else self._gpu.clock_hertz()

    def _unwatched(self, shares: Shares) -> tuple[str, ...]:
        """Return names of the disturbances that this system does not count."""
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


def _select(turn: Round, names: Collection[str] | None) -> Round:
    return turn if names is None else {name: turn[name] for name in names}


def _total_seconds(turn: Round) -> float:
    return sum(sample.shares.seconds for sample in turn.values())


def _count_undisturbed(every: list[Round]) -> int:
    return sum(not cause(turn) for turn in every)


def _commonest_cause(every: list[Round]) -> str:
    """Return the most frequent cause, and how many rounds were disturbed, as one text."""
    causes = Counter(filter(None, map(cause, every)))
    return f"{causes.most_common(1)[0][0]} ({causes.total()} of {len(every)} samples)"

"""Counters of the system: waiting, absence, steal, and the load of other processes.

All are read from Linux. Each may be missing (on another system, in a container, or in a kernel
without it); then its field is None. Torch-free.

| counter | from | resolution |
| --- | --- | --- |
| processor time of the process, of the measuring thread | `clock_gettime` | ns |
| waiting for a processor, by thread | `/proc/self/task/*/schedstat` | ns |
| idle, steal of all processors | `/proc/stat` | a tick, 10 ms |
| throttled by a limit on the container | `cpu.stat` of the control groups | ns or µs |
| stalls for memory | `/proc/pressure/memory` | µs |
| major page faults | `getrusage` | 1 |
| clock of the processors | `/sys/…/cpufreq/scaling_cur_freq` | kHz |
"""

import os
import re
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from lra.conf.processors import group_folders

_BYTES = 1 << 16  # most bytes of a file that are read
_STAT = re.compile(r"^cpu[0-9]+ ", re.MULTILINE)
_STALLED = re.compile(r"^some .*\btotal=([0-9]{1,18})$", re.MULTILINE)
_THROTTLED = re.compile(r"^(throttled_usec|throttled_time) ([0-9]{1,18})$", re.MULTILINE)
_SECONDS = {"throttled_usec": 1e-6, "throttled_time": 1e-9}
"""Seconds in a unit of each counter; the two versions of control groups differ."""


class Machine(NamedTuple):
    """Time of all processors together since the machine started, in seconds."""

    at: float
    """Wall clock of this reading, as in `time.perf_counter`."""
    process_s: float
    """Processor time of this process at the same moment."""
    idle: float
    steal: float
    """Time that other virtual machines took."""
    total: float
    processors: int


class ProcessTimes(NamedTuple):
    """The times of one process since its start, in seconds."""

    at: float
    """Wall clock, as in `time.perf_counter`."""
    process: float
    """Processor time of all threads."""
    thread: float
    """Processor time of the thread that measures."""
    waited: float | None
    """Time that threads were ready but had no processor, summed over threads."""
    thread_waited: float | None
    slices: int | None
    """How often threads got a processor."""
    throttled: float | None
    memory_stall: float | None
    """Time in which any process of the machine waited for memory."""
    faults: int
    """Number of pages that were read from a disk."""


def parse_stat(text: str, ticks: int) -> tuple[float, float, float, int] | None:
    """Return idle, steal and total seconds, and the number of processors, from `/proc/stat`.

    Args:
        text: content of the file. None is returned if it is not of this kind.
        ticks: how many ticks, the unit of the file, a second has.
    """
    first, _, rest = text.partition("\n")
    name, *fields = first.split()[:9] or [""]
    if name != "cpu" or len(fields) < 4 or not all(_is_count(field) for field in fields):
        return None
    spent = [int(field) / ticks for field in fields]
    spent += [0.0] * (8 - len(spent))  # before Linux 2.6.11 there was no steal
    processors = len(_STAT.findall(rest))
    total = sum(spent)
    if not processors or not total > 0:  # some containers give a file of zeros
        return None
    # Fields: user, nice, system, idle, iowait (also idle), irq, softirq, steal.
    return spent[3] + spent[4], spent[7], total, processors


def parse_schedstat(text: str) -> tuple[float, int] | None:
    """Return how many seconds a thread waited, and how often it ran; None for another text."""
    fields = text.split()
    if len(fields) != 3 or not all(_is_count(field) for field in fields):
        return None
    return int(fields[1]) * 1e-9, int(fields[2])


def parse_pressure(text: str) -> float | None:
    """Return the seconds in which any process waited for memory; None for another text."""
    match = _STALLED.search(text)
    return None if match is None else int(match[1]) * 1e-6


def parse_throttled(text: str) -> float | None:
    """Return the seconds for which a limit stopped a control group; None if it has no limit."""
    match = _THROTTLED.search(text)
    return None if match is None else int(match[2]) * _SECONDS[match[1]]


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


class Counters:
    """Reads counters of this process and of its machine; their files stay open.

    Args:
        proc: folder of the process file system.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._files: dict[str, int] = {}
        self._ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        self.tick = 1 / self._ticks
        """Resolution of `machine`, in seconds."""
        groups = (self._text(f"{proc}/self/{name}") or "" for name in ("cgroup", "mounts"))
        # The control groups of this process that can limit it.
        stats = [f"{folder}/cpu.stat" for folder in group_folders(*groups)]
        self._groups = [f for f in stats if parse_throttled(self._text(f) or "") is not None]

    def __del__(self) -> None:
        """Close the open files."""
        for opened in self._files.values():
            with suppress(OSError):
                os.close(opened)

    def _text(self, path: str) -> str | None:
        """Return the text of a small file, which stays open; None if there is no such file."""
        try:
            opened = self._files.get(path)
            if opened is None:
                opened = self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return os.pread(opened, _BYTES, 0).decode("ascii", "replace")
        except OSError:
            if (stale := self._files.pop(path, None)) is not None:
                os.close(stale)
            return None

    def machine(self) -> Machine | None:
        """Return the times of all processors; None if the system does not report them."""
        text = self._text(f"{self._proc}/stat")
        at, process_s = time.perf_counter(), time.process_time()
        counts = None if text is None else parse_stat(text, self._ticks)
        if counts is None:
            return None
        idle, steal, total, processors = counts
        return Machine(at, process_s, idle, steal, total, processors)

    def process_times(self) -> ProcessTimes:
        """Return the times of this process and its threads."""
        waited, thread_waited, slices = self._read_waits()
        throttled = [parse_throttled(self._text(path) or "") for path in self._groups]
        limited = [seconds for seconds in throttled if seconds is not None]
        return ProcessTimes(
            at=time.perf_counter(),
            process=time.process_time(),
            thread=time.thread_time(),
            waited=waited,
            thread_waited=thread_waited,
            slices=slices,
            throttled=sum(limited) if limited else None,
            memory_stall=parse_pressure(self._text(f"{self._proc}/pressure/memory") or ""),
            faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        )

    def _read_waits(self) -> tuple[float | None, float | None, int | None]:
        """Return how long all threads waited, how long this one did, and how often threads ran."""
        folder = f"{self._proc}/self/task"
        mine = f"{folder}/{threading.get_native_id()}/schedstat"
        try:
            paths = [f"{folder}/{name}/schedstat" for name in os.listdir(folder)]  # noqa: PTH208
        except OSError:
            return None, None, None
        schedules = {path: parse_schedstat(self._text(path) or "") for path in paths}
        if schedules.get(mine) is None:
            return None, None, None
        waits = [wait for wait in schedules.values() if wait is not None]
        own = schedules[mine]  # seconds waited and times run; not None, as checked above
        return sum(w for w, _ in waits), own and own[0], sum(n for _, n in waits)


def clock_hertz(root: Path = Path("/sys/devices/system/cpu")) -> float | None:
    """Return the highest clock rate of the processors that this process may use; None: unknown."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    hertz = []
    for number in sorted(allowed):
        with suppress(OSError, ValueError):
            text = (root / f"cpu{number}/cpufreq/scaling_cur_freq").read_text()
            hertz.append(int(text) * 1e3)
    return max(hertz, default=None)

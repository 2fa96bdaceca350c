"""Processors that this process may use at once: those of its affinity, and of a quota (Linux).

A container with `--cpus 1.5` sees every core of its machine and is held back after 1.5 seconds of
processor time in a second. Version 2 of control groups says so in `cpu.max`, version 1 in
`cpu.cfs_quota_us` and `cpu.cfs_period_us`, of the process's group and of each above it.
"""

import os
import re
import time
from functools import lru_cache
from pathlib import Path

ROOT = Path("/")
"""What files of the system are read below."""
_QUOTA = re.compile(r"([0-9]{1,18})\s+([0-9]{1,18})")


SPIN = "GOMP_SPINCOUNT"
_NO_SPIN = "0"
"""Turns for which a thread of OpenMP waits awake. Beside one loop on two processors, a step of
15 ms takes 38 ms with the default, 69 ms with 3,000 turns, and 25 ms with none."""
_LOOKS, _LOOK_S = 4, 0.5
"""What has just ended, such as the fork server of the command before, computes for a second."""
_SHARE = 0.5
"""Of a processor: asleep, threads cost a quiet machine twice the time."""


def yield_processors() -> None:
    """Let threads that wait for one another sleep at once, if others want the processors just now.

    Beside a load, threads that wait awake take the time of those that they wait for: a step of two
    threads on two processors becomes several times as long, and so by the processors' clock. A
    quiet machine keeps the default, and its times. Must be called before PyTorch is imported.
    """
    if SPIN in os.environ or "OMP_WAIT_POLICY" in os.environ:
        return
    running = _text(ROOT, "/proc/loadavg").split()[3:4]
    if not running or int(running[0].partition("/")[0]) <= 1:  # one is this process
        return
    for _ in range(_LOOKS):
        before = _computed_s() - time.process_time()
        time.sleep(_LOOK_S)
        others = (_computed_s() - time.process_time() - before) / _LOOK_S
        if _allowed_cores() - others > processors() - _SHARE:
            return
    os.environ[SPIN] = _NO_SPIN


def _computed_s() -> float:
    """Return the seconds that the cores of this process's affinity have computed for anybody."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.partition(" ") for line in _text(ROOT, "/proc/stat").splitlines())
    ours = [times.split() for name, _, times in lines if name in names]
    # user, nice, system, idle, iowait, irq, softirq
    ticks = sum(int(field) for times in ours for field in (*times[:3], *times[5:7]))
    return ticks / os.sysconf("SC_CLK_TCK")


def processors() -> int:
    """Return how many threads can compute at once: see `within_quota`."""
    return within_quota(_allowed_cores())


def within_quota(cores: int) -> int:
    """Return so many cores, or the whole part of the quota where that is less, from 1."""
    quota = cpu_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def processor_words(cores: int | None = None) -> str:
    """Return cores, by default those of this process, and its quota, as a person says it."""
    cores, quota = _allowed_cores() if cores is None else cores, cpu_quota()
    words = f"{cores} core{'' if cores == 1 else 's'}"
    return words if quota is None else f"{words} with a quota of {quota:.3g}"


def _allowed_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the smallest quota of this process's control groups, in processors; None: no quota."""
    return _quota_below(ROOT)


@lru_cache
def _quota_below(root: Path) -> float | None:
    groups, mounts = (_text(root, f"/proc/self/{name}") for name in ("cgroup", "mounts"))
    found: list[float] = []
    for folder in group_folders(groups, mounts):
        period = _text(root, f"{folder}/cpu.cfs_period_us")
        for words in (
            _text(root, f"{folder}/cpu.max"),
            f"{_text(root, f'{folder}/cpu.cfs_quota_us')} {period}",
        ):
            match = _QUOTA.fullmatch(words.strip())  # without a quota it is "max" or -1
            if match is not None and int(match[1]) and int(match[2]):
                found.append(int(match[1]) / int(match[2]))
    return min(found, default=None)


def group_folders(groups: str, mounts: str) -> list[str]:
    """Return the folders of a process's control groups of processors, ancestors included.

    Args:
        groups: `/proc/self/cgroup`.
        mounts: `/proc/self/mounts`.
    """
    roots: dict[str, str] = {}
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] == "cgroup2":
            roots.setdefault("", fields[1])
        elif len(fields) >= 4 and fields[2] == "cgroup" and "cpu" in fields[3].split(","):
            roots.setdefault("cpu", fields[1])
    folders = []
    for line in groups.splitlines():
        _, names, path = [*line.split(":", 2), "", "", ""][:3]
        root = roots.get("cpu" if "cpu" in names.split(",") else names)
        if root is None or not path.startswith("/") or ".." in path:
            continue
        parts = [part for part in path.split("/") if part]
        folders += ["/".join([root, *parts[:end]]) for end in range(len(parts) + 1)]
    return list(dict.fromkeys(folders))


def _text(root: Path, path: str) -> str:
    """Read a small file of the system; "" where there is none."""
    try:
        return (root / path.lstrip("/")).read_text("ascii", "replace")
    except OSError:
        return ""

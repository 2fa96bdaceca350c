"""How many processors this process may use at once: its CPU affinity and its quota (Linux).

Inside a container started with `--cpus 1.5`, all cores of the machine are visible, but Linux pauses
the processes after 1.5 seconds of processor time in each second. The quota is in the files of the
process's control group and of each parent group: `cpu.max` in version 2 of control groups,
`cpu.cfs_quota_us` and `cpu.cfs_period_us` in version 1.
"""

import os
import re
import time
from functools import lru_cache
from pathlib import Path

ROOT = Path("/")
"""Folder that contains /proc and /sys; tests use another."""
_QUOTA = re.compile(r"([0-9]{1,18})\s+([0-9]{1,18})")


SPIN = "GOMP_SPINCOUNT"
_NO_SPIN = "0"
"""Loop turns for which an OpenMP thread waits awake before it sleeps. While another process uses
one of two processors, a step of 15 ms takes 38 ms with the default, 69 ms with 3,000 turns, and
25 ms with 0."""
_LOOKS, _LOOK_S = 4, 0.5
"""Number of checks for other processes, and seconds between: an ending one computes for 1 s."""
_SHARE = 0.5
"""Busy part of a processor that counts as load; without load, sleeping threads double a step."""


def yield_processors() -> None:
    """Make waiting OpenMP threads sleep at once, if other processes use the processors just now.

    Threads that wait awake take processor time from the threads that they wait for. If another
    process is busy, a step of two threads on two processors takes several times as long. On a quiet
    machine, nothing changes. Must be called before PyTorch is imported.
    """
    if SPIN in os.environ or "OMP_WAIT_POLICY" in os.environ:
        return
    running = _text(ROOT, "/proc/loadavg").split()[3:4]
    if not running or int(running[0].partition("/")[0]) <= 1:  # only this process is running
        return
    # Return if, at any look, the idle cores are enough for as many threads as this process starts.
    for _ in range(_LOOKS):
        before = _computed_s() - time.process_time()
        time.sleep(_LOOK_S)
        others = (_computed_s() - time.process_time() - before) / _LOOK_S
        if _allowed_cores() - others > processors() - _SHARE:
            return
    os.environ[SPIN] = _NO_SPIN


def _computed_s() -> float:
    """Return the seconds that all processes together have used on this process's cores."""
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
    """Return the smaller of `cores` and the quota of this process, rounded down, but at least 1."""
    quota = cpu_quota()
    return cores if quota is None else min(cores, max(1, int(quota)))


def processor_words(cores: int | None = None) -> str:
    """Return a text with a number of cores (None: of this process) and this process's quota."""
    cores, quota = _allowed_cores() if cores is None else cores, cpu_quota()
    words = f"{cores} core{'' if cores == 1 else 's'}"
    return words if quota is None else f"{words} with a quota of {quota:.3g} cores"


def _allowed_cores() -> int:
    """Return the number of cores that this process may run on, whatever its quota."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota() -> float | None:
    """Return the smallest quota of this process's control groups, in processors; None: no quota."""
    return _quota_below(ROOT)


@lru_cache
def _quota_below(root: Path) -> float | None:
    """Return the smallest quota that the system files under `root` name; None: no quota."""
    groups, mounts = (_text(root, f"/proc/self/{name}") for name in ("cgroup", "mounts"))
    quotas: list[float] = []
    for folder in group_folders(groups, mounts):
        period = _text(root, f"{folder}/cpu.cfs_period_us")
        for words in (
            _text(root, f"{folder}/cpu.max"),
            f"{_text(root, f'{folder}/cpu.cfs_quota_us')} {period}",
        ):
            match = _QUOTA.fullmatch(words.strip())  # without a quota, the text is "max" or -1
            if match is not None and int(match[1]) and int(match[2]):
                quotas.append(int(match[1]) / int(match[2]))  # quota over period
    return min(quotas, default=None)


def group_folders(groups: str, mounts: str) -> list[str]:
    """Return the folders of a process's CPU control groups, and of all their parent groups.

    Args:
        groups: Content of `/proc/self/cgroup`; a line is `number:controllers:path`.
        mounts: Content of `/proc/self/mounts`; a line is `device folder type options ...`.
    """
    roots: dict[str, str] = {}  # folder by controller; "" stands for version 2
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
    """Return the text of the system file `path` under `root`; "" if it cannot be read."""
    try:
        return (root / path.lstrip("/")).read_text("ascii", "replace")
    except OSError:
        return ""

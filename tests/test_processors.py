"""Quotas of control groups: read from both versions, and what they mean for threads and advice."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lra.commands import doctor, run as command
from lra.conf import processors as module
from lra.conf.processors import cpu_quota, group_folders, processors
from lra.runners.measurement.disturbance import THROTTLED, WAITED, with_quota
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.training_places import places_of
from lra.runners.records import DISTURBED, Measurement
from lra.sweep.cells import environment
from tests.lra.sweep.test_busy_machine import planned, write

CORES = len(os.sched_getaffinity(0))
MOUNTS = (
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
    "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
)
V1, V2 = "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/unified"
System = Callable[[dict[str, str]], None]


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """Give files of a system whose process is in group /a/b of version 1 and /c/d of version 2."""
    monkeypatch.setattr(module, "ROOT", tmp_path)

    def give(files: dict[str, str]) -> None:
        mine = {"proc/self/cgroup": "2:cpu,cpuacct:/a/b\n0::/c/d\n", "proc/self/mounts": MOUNTS}
        for name, text in (mine | files).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    yield give
    module._quota_below.cache_clear()


def test_groups_of_both_versions_are_found_with_their_ancestors() -> None:
    assert group_folders("2:cpu,cpuacct:/a/b\n0::/c\n", MOUNTS) == [
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/cpu,cpuacct/a",
        "/sys/fs/cgroup/cpu,cpuacct/a/b",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/unified/c",
    ]
    assert group_folders("0::/../../etc\n", MOUNTS) == []
    assert group_folders("", "") == []


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({f"{V2}/c/d/cpu.max": "max 100000\n"}, None),
        ({f"{V2}/c/d/cpu.max": "150000 100000\n"}, 1.5),
        ({f"{V2}/c/d/cpu.max": "max 100000\n", f"{V2}/c/cpu.max": "50000 100000\n"}, 0.5),
        ({f"{V2}/c/d/cpu.max": "40000 20000\n", f"{V2}/cpu.max": "300000 100000\n"}, 2.0),
        ({f"{V2}/e/cpu.max": "50000 100000\n"}, None),  # of another group
        ({f"{V1}/a/b/cpu.cfs_quota_us": "-1\n", f"{V1}/a/b/cpu.cfs_period_us": "100000\n"}, None),
        ({f"{V1}/cpu.cfs_quota_us": "250000\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 2.5),
        ({f"{V1}/a/cpu.cfs_quota_us": "75000\n", f"{V1}/a/cpu.cfs_period_us": "50000\n"}, 1.5),
        ({f"{V1}/a/cpu.cfs_quota_us": "75000\n"}, None),
        *(({f"{V2}/cpu.max": odd}, None) for odd in ("", "0 0", "5 0", "-5 9", "1e3 5", "9" * 40)),
    ],
)
def test_the_smallest_quota_of_both_versions_counts(
    system: System, files: dict[str, str], quota: float | None
) -> None:
    system(files)
    assert cpu_quota() == quota
    assert processors() == (CORES if quota is None else min(CORES, max(1, int(quota))))
    assert environment().get("quota") == (None if quota is None else f"{quota:g} processors")


def test_threads_and_places_are_its_whole_part(system: System) -> None:
    profile = HardwareProfile(name="cpu")
    assert profile.timing_threads() == profile.side_by_side() == CORES
    system({f"{V2}/cpu.max": "150000 100000"})
    module._quota_below.cache_clear()
    assert profile.timing_threads() == profile.side_by_side() == 1
    assert len(places_of(profile, timed=False).all) == 1
    assert HardwareProfile(name="cpu", threads=3).timing_threads() == 3
    assert f"{CORES} core" in (said := doctor.machine_facts()["threads"])
    assert "with a quota of 1.5 cores for this process" in said
    assert said.endswith("and 1 in a timed run")


@pytest.mark.parametrize("words", [THROTTLED, WAITED])
def test_a_mark_names_a_quota_below_the_threads(system: System, words: str) -> None:
    assert with_quota(words, 999) == words
    system({f"{V2}/cpu.max": "150000 100000"})
    module._quota_below.cache_clear()
    assert with_quota(words, 2) == f"{words}: a quota of 1.5 processors for 2 threads"
    assert with_quota(words, 1) == words
    assert with_quota("memory ran short", 2) == "memory ran short"


@pytest.mark.parametrize(("asked", "wanted"), [(2, True), (1, False)])
def test_waiting_for_quiet_is_no_advice_where_a_quota_holds_back(
    system: System, tmp_path: Path, asked: int, wanted: bool
) -> None:
    system({f"{V2}/cpu.max": "150000 100000"})
    sweep = planned(tmp_path / "results", f"hardware.threads={asked}")
    shaken = Measurement(metric="time", value=0.5, labels={DISTURBED: WAITED})
    write(sweep, 0, shaken)
    line = command.advice_if_disturbed(sweep, ["model=linear"])
    assert "disturbed 1 of 3 runs" in line
    assert ("may use 1.5 processors" in line) == wanted
    assert ("Raise the limit to 2, or set hardware.threads=1" in line) == wanted
    assert ("When the machine is quiet" in line) != wanted


@pytest.mark.parametrize(
    ("load", "set_before", "spin"),
    [
        (("1/155", 50), "", None),
        (("3/155", 50), "", "0"),
        (("3/155", 10), "", None),  # what has just ended
        (("3/155", 50), "9", "9"),
        ((None, 50), "", None),
    ],
)
def test_threads_sleep_at_once_where_others_compute(
    system: System, monkeypatch: pytest.MonkeyPatch, load: tuple[str | None, int],
    set_before: str, spin: str | None,
) -> None:  # fmt: skip
    running, ticks = load
    monkeypatch.setenv(module.SPIN, set_before)
    if not set_before:
        monkeypatch.delenv(module.SPIN)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2})

    def after(busy: int) -> None:
        others = "cpu1 9999 0 0 9 0 0 0 0\n"  # of a core that is not ours
        stat = f"cpu 9 9 9 9\ncpu0 {100 + busy} 0 5 70 0 0 0 0\n{others}cpu2 7 0 0 90 0 0 0 0\n"
        words = f"0.50 0.40 0.30 {running} 4711\n"
        system({"proc/stat": stat} | ({} if running is None else {"proc/loadavg": words}))

    after(0)
    looks = itertools.count(1)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: after(ticks * next(looks)))
    module.yield_processors()
    assert os.environ.get(module.SPIN) == spin
    assert environment().get(module.SPIN) == spin

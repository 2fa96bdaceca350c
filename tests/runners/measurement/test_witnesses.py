"""Counters of the system: what they say is read exactly, and nonsense is no number."""

import os
import random
from pathlib import Path

import pytest

from lra.runners.measurement.witnesses import (
    Counters,
    clock_hertz,
    parse_pressure,
    parse_schedstat,
    parse_stat,
    parse_throttled,
)
from tests.fuzz import cases

STAT = "cpu  300 0 200 1000 50 0 0 50 0 0\ncpu0 1 0 0 0 0 0 0 0\ncpu1 1 0 0 0 0 0 0 0\nintr 5\n"
PRESSURE = "some avg10=9.27 avg60=3.75 avg300=1.30 total=9921429\nfull avg10=0.00 total=0\n"
SOUND = {
    parse_stat: STAT,
    parse_schedstat: "1473616 321753 8\n",
    parse_pressure: PRESSURE,
    parse_throttled: "usage_usec 5\nnr_throttled 2\nthrottled_usec 7000\n",
}


def test_what_the_system_says_is_read_in_seconds() -> None:
    assert parse_stat(STAT, 100) == (10.5, 0.5, 16.0, 2)
    assert parse_schedstat("1473616 321753 8\n") == (pytest.approx(321753e-9), 8)
    assert parse_pressure(PRESSURE) == pytest.approx(9.921429)
    assert parse_throttled("throttled_usec 7000\n") == pytest.approx(7e-3)
    assert parse_throttled("nr_periods 1\nthrottled_time 7000000\n") == pytest.approx(7e-3)


@pytest.mark.parametrize("text", ["", "cpu", "cpu 1 2 3", "cpu  0 0 0 0\ncpu0 0 0 0 0\n", "x" * 99])
def test_a_file_that_says_nothing_is_none(text: str) -> None:
    assert parse_stat(text, 100) is None
    assert parse_schedstat(text) is None
    assert parse_pressure(text) is None
    assert parse_throttled(text) is None


@pytest.mark.parametrize("parse", [parse_stat, parse_schedstat, parse_pressure, parse_throttled])
def test_damage_gives_none_or_finite_numbers(parse: object) -> None:
    text, draw = SOUND[parse], random.Random(0)  # type: ignore[index]
    for _ in range(cases(300)):
        letters = list(text)
        for _ in range(draw.randint(1, 12)):
            at = draw.randrange(len(letters) + 1)
            new = draw.choice(["", "\n", " ", "-", "9" * 30, "ä", "٣", "\0", "e9", ".", "nan"])
            letters[at : at + draw.randint(0, 5)] = list(new)
        damaged = "".join(letters)
        found = parse(damaged, 100) if parse is parse_stat else parse(damaged)  # type: ignore[operator]
        if found is not None:
            numbers = found if isinstance(found, tuple) else (found,)
            assert all(0 <= number < 1e30 for number in numbers), damaged


def test_a_system_without_counters_gives_none_and_still_the_clock(tmp_path: Path) -> None:
    counters = Counters(tmp_path)
    assert counters.machine() is None
    own = counters.process_times()
    assert (own.waited, own.thread_waited, own.slices) == (None, None, None)
    assert (own.throttled, own.memory_stall) == (None, None)
    assert min(own.process, own.thread) > 0
    assert clock_hertz(tmp_path) is None


def test_descriptors_are_kept_and_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    counters = Counters()
    for _ in range(50):
        counters.process_times()
        counters.machine()
    assert len(os.listdir("/proc/self/fd")) < before + 40  # noqa: PTH208
    del counters
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_highest_clock_counts(tmp_path: Path) -> None:
    for number in os.sched_getaffinity(0):
        folder = tmp_path / f"cpu{number}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(str(1_000_000 + number))
    assert clock_hertz(tmp_path) == (1_000_000 + max(os.sched_getaffinity(0))) * 1e3

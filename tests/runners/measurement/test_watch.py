"""What counts as disturbed, what is repeated, kept and marked: counters are played."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lra.runners.measurement import watch as watching
from lra.runners.measurement.disturbance import (
    LIMIT,
    Shares,
    load,
    quartile_ratio,
    reason,
    scatter_reason,
    shares_between,
)
from lra.runners.measurement.watch import GpuWatch, Round, Sample, Watch
from lra.runners.measurement.watched_rows import mark_labels, processor_rows, watch_rows
from lra.runners.measurement.witnesses import Counters, Machine, ProcessTimes
from tests.fuzz import cases

CPU = torch.device("cpu")
NOTHING = ProcessTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0.0, 0.0, 0)
QUIET = Shares(
    seconds=0.01, processor=1.0, waiting=0.0, absent=0.0, throttled=0.0, memory_stall=0.0,
    steal=0.0, other_load=0.01, unsure=0.05,
)  # fmt: skip
DISTURBED = {
    "waiting": "waited for a processor",
    "absent": "its processor was taken away",
    "throttled": "held back by the container's limit",
    "memory_stall": "memory ran short",
    "steal": "processor taken by another virtual machine",
    "other_load": "load of other processes",
}


class Played(Counters):
    """Counters of one thread that computes, on a machine of two processors that play a part."""

    def __init__(self, now: Callable[[], float], **part: float) -> None:
        super().__init__()
        self.now, self.part = now, part

    def process_times(self) -> ProcessTimes:
        now, part = self.now(), self.part
        lost = part.get("waiting", 0.0) + part.get("absent", 0.0)
        ran, waited = now * (1 - lost), now * part.get("waiting", 0.0)
        held = now * part.get("throttled", 0.0)
        return ProcessTimes(
            now, ran, ran, waited, waited, 0, held, now * part.get("memory_stall", 0.0), 0
        )

    def machine(self) -> Machine | None:
        now, part = self.now(), self.part
        others, steal = (2 * now * part.get(name, 0.0) for name in ("other_load", "steal"))
        own = self.process_times().process
        return Machine(now, own, 2 * now - own - others - steal, steal, 2 * now, 2)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless it is moved, or somebody sleeps."""
    hand = SimpleNamespace(at=0.0)

    def sleep(seconds: float) -> None:
        hand.at += seconds

    fake = SimpleNamespace(perf_counter=lambda: hand.at, sleep=sleep)
    monkeypatch.setattr(watching, "time", fake)
    hand.sleep = sleep
    return hand


def rounds_of(
    clock: SimpleNamespace,
    seconds: float = 0.1,
    asked: int = 10,
    repeat_s: float = 10.0,
    **part: Any,
) -> watching.Rounds:
    watch = Watch(CPU, counters=Played(lambda: clock.at, **part))
    watch.threads = 1

    def timed() -> float:
        clock.sleep(seconds)
        return seconds

    clock.sleep(0.3)
    return watch.rounds(lambda number: {"model": watch.sample(timed)}, asked, repeat_s=repeat_s)


def test_a_quiet_machine_marks_nothing_and_repeats_nothing(clock: SimpleNamespace) -> None:
    found = rounds_of(clock)
    assert (found.disturbed, found.discarded, len(found.every)) == ("", 0, 10)
    assert found.shares.processor == pytest.approx(1.0)
    assert found.shares.other_load == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", DISTURBED)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_every_witness_marks_by_itself(clock: SimpleNamespace, name: str, share: float) -> None:
    found = rounds_of(clock, **{name: share})
    assert DISTURBED[name] in found.disturbed
    lasting = name in {"waiting", "throttled", "other_load"}
    assert (len(found.every) == 10) is lasting  # what may pass is tried again
    assert found.discarded == 0  # nothing better was there: all is kept, and marked
    assert mark_labels({}, found, found.samples("model"))["disturbed"] == found.disturbed


def test_a_load_is_seen_soon_after_it_began(clock: SimpleNamespace) -> None:
    played = Played(lambda: clock.at)
    watch = Watch(CPU, counters=played)
    watch.threads = 1

    def timed() -> float:
        clock.sleep(0.003)
        return 0.003

    for _ in range(200):
        assert watch.sample(timed).reason == ""
    began, machine = clock.at, played.machine

    def loaded() -> Machine | None:
        found = machine()
        assert found is not None
        return found._replace(idle=found.idle - (clock.at - began))

    played.machine = loaded  # type: ignore[method-assign]
    reasons = [watch.sample(timed).reason for _ in range(40)]
    first = reasons.index("load of other processes")
    assert first * 0.003 < 0.09
    assert set(reasons[first:]) == {"load of other processes"}


@pytest.mark.parametrize("name", ["waiting", "throttled"])
def test_samples_between_two_waits_are_disturbed_as_well(clock: SimpleNamespace, name: str) -> None:
    played = Played(lambda: clock.at)
    watch = Watch(CPU, counters=played)
    watch.threads = 1
    held, quiet = 0.0, played.process_times

    def process_times() -> ProcessTimes:
        found = quiet()
        if name == "throttled":
            return found._replace(throttled=held)
        return found._replace(waited=held, thread_waited=held)

    played.process_times = process_times  # type: ignore[method-assign]

    def timed() -> float:
        clock.sleep(0.001)
        return 0.001

    for _ in range(5):  # a tenth of a second, half of it lost, and five short samples after it
        clock.sleep(0.1)
        held += 0.05
        found = [watch.sample(timed) for _ in range(5)]
        assert {sample.reason for sample in found} == {DISTURBED[name]}
        assert all(not sample.shares.waiting and not sample.shares.throttled for sample in found)
    clock.sleep(0.3)  # it is over
    assert watch.sample(timed).reason == ""


def test_repeats_end_with_their_budget(clock: SimpleNamespace) -> None:
    assert len(rounds_of(clock, waiting=0.5, repeat_s=0.0).every) == 10
    assert 10 < len(rounds_of(clock, memory_stall=0.5, repeat_s=0.55).every) <= 15
    assert len(rounds_of(clock, memory_stall=0.5, repeat_s=100.0).every) == 20
    for lasting in ("waiting", "other_load"):  # it is waited for, and not for long
        begun = clock.at
        assert len(rounds_of(clock, **{lasting: 0.5}).every) == 10
        assert clock.at - begun <= 0.3 + 10 * 0.1 + watching.WAIT_S


@pytest.mark.parametrize(
    ("threads", "processor", "thread", "why", "computed"),
    [
        (2, 0.5, 0.25, "load of other processes", 1.0),  # two threads, each with a quarter
        (2, 0.25, 0.25, "load of other processes", 1.0),  # what one thread alone can do
        (2, 2.0, 1.0, "quartiles", 4.0),  # nothing waited
        (2, 0.5, 0.25, "", 4.0),  # by the wall clock where nothing was disturbed
    ],
)
def test_what_a_call_computed_is_held_against_limits(
    threads: int, processor: float, thread: float, why: str, computed: float
) -> None:
    shares = Shares(seconds=4.0, processor=processor, thread=thread)
    sample = Sample(seconds=4.0, shares=shares, reason=why)
    assert sample.computed_s(threads) == computed
    assert replace(sample, on_gpu=True).computed_s(threads) == 4.0


def test_the_processors_clock_leaves_waits_out(clock: SimpleNamespace) -> None:
    found = rounds_of(clock, waiting=0.75)
    assert found.samples("model") == pytest.approx([0.1] * 10)
    assert found.processor_samples("model") == pytest.approx([0.025] * 10)
    rows = [*processor_rows(found, "model", {"model": "sdpa"})]
    assert [row.metric for row in rows] == ["processor_time", "processor_time_ratio"]
    assert rows[0].value == pytest.approx(0.025)
    assert (rows[1].value, rows[1].labels) == (pytest.approx(1.0), {"reference": "sdpa"})


def samples(reasons: list[str]) -> list[Round]:
    made = []
    for number, why in enumerate(reasons):
        own = Sample(seconds=1.0 + number, shares=QUIET, reason=why)
        made.append({"model": own, "reference": replace(own, reason="")})
    return made


@pytest.mark.parametrize("case", range(cases(20)))
def test_undisturbed_rounds_are_kept_where_they_are_enough(case: int) -> None:
    draw = random.Random(case)
    asked = draw.randint(3, 12)
    reasons = draw.choices(["", "noise"], weights=[draw.random(), 0.3], k=draw.randint(asked, 24))
    watch = Watch(CPU)
    found = watch.judged(samples(reasons), asked)
    clean = [1.0 + number for number, why in enumerate(reasons) if not why]
    if len(clean) >= max(3, asked / 2, 2 * len(reasons) / 3):
        assert found.samples("model") == found.samples("reference") == tuple(clean)
        assert found.disturbed == ""
    else:
        assert len(found.samples("model")) == len(reasons)
        assert "noise" in found.disturbed
    assert found.discarded + len(found.retained) == len(reasons)
    (last,) = [row for row in watch_rows(found) if row.metric == "discarded_samples"]
    assert last.value == found.discarded


def test_many_small_losses_mark_as_well() -> None:
    watch = Watch(CPU)
    watch.threads = 1
    shares = replace(QUIET, waiting=0.8 * LIMIT)
    found = watch.judged([{"model": Sample(seconds=1.0, shares=shares, reason="")}] * 5, 5)
    assert found.disturbed == "the median sample lost 8% of its time"


def test_samples_that_no_counter_explains_are_marked() -> None:
    strange = (1.002, 0.022, 0.4, 0.5, 0.051)
    assert (
        scatter_reason(strange) == f"quartiles differ by a factor of {quartile_ratio(strange):.1f}"
    )
    assert scatter_reason((1.0, 1.1, 0.9, 9.0, 1.0)) == ""  # one stall moves no median
    assert scatter_reason((1.0,)) == ""
    found = Watch(CPU).judged(samples([""] * 5), 5)
    assert mark_labels({"kernel": "k"}, found, strange) == {
        "kernel": "k",
        "disturbed": scatter_reason(strange),
    }


def test_short_waits_of_woken_threads_are_no_disturbance() -> None:
    last = NOTHING._replace(at=0.01, process=0.01, thread=0.01, waited=0.004, slices=100)
    assert shares_between(NOTHING, last).waiting == 0.0
    assert shares_between(NOTHING, last._replace(slices=1)).waiting == pytest.approx(0.395)


def test_threads_that_share_processors_wait_for_each_other() -> None:
    shares = replace(QUIET, waiting=0.9)
    assert reason(shares) == "waited for a processor"
    assert reason(shares, alone=False) == ""


def test_on_a_gpu_the_host_may_sleep() -> None:
    shares = replace(QUIET, absent=0.9, other_load=0.9)
    assert reason(shares) != ""
    assert reason(shares, on_gpu=True) == ""
    assert reason(replace(QUIET, gpu="heat"), on_gpu=True) == "heat"


@pytest.mark.parametrize(
    "last",
    [
        Machine(1.0, 1.0, 0.0, 0.0, 0.0, 2),  # stands still
        Machine(1.0, 1.0, 64.0, 0.0, 64.0, 2),  # that of another number of processors
        Machine(1.0, 1.0, 1.0, 0.0, 4.0, 4),  # one was added
        Machine(0.0, 0.0, 0.0, 0.0, 0.0, 2),  # no time has passed
    ],
)
def test_a_file_that_does_not_add_up_is_no_witness(last: Machine) -> None:
    assert load(Machine(0.0, 0.0, 0.0, 0.0, 0.0, 2), last, 0.01) is None


def test_what_is_disturbed_in_one_comparison_is_repeated_for_that_one(
    clock: SimpleNamespace,
) -> None:
    watch = Watch(CPU, counters=Played(lambda: clock.at))
    taken: list[list[str]] = []

    def turn(number: int, wanted: Any) -> Any:
        names = [name for name in "abr" if wanted is None or name in wanted]
        taken.append(names)
        clock.sleep(0.1)
        bad = {"b"} if number in {1, 4} else set()
        clean = watch.sample(lambda: 0.1)
        return {name: replace(clean, reason="load" if name in bad else "") for name in names}

    first, second = watch.rounds_of(turn, ["ar", "br"], 4, repeat_s=10.0)
    assert taken == [[*"abr"]] * 4 + [[*"br"]] * 2
    assert [len(part.every) for part in (first, second)] == [4, 6]
    assert [part.discarded for part in (first, second)] == [0, 2]
    assert len(first.samples("a")) == len(second.samples("b")) == 4
    assert [*second.every[-1]] == ["b", "r"]


def test_what_cannot_be_watched_is_said(clock: SimpleNamespace) -> None:
    class Blind(Played):
        def process_times(self) -> ProcessTimes:
            own = super().process_times()
            return ProcessTimes(own.at, own.process, own.thread, None, None, None, None, None, 0)

        def machine(self) -> Machine | None:
            return None

    watch = Watch(CPU, counters=Blind(lambda: clock.at))

    def timed() -> float:
        clock.sleep(0.1)
        return 0.1

    found = watch.rounds(lambda number: {"model": watch.sample(timed)}, 3, repeat_s=1.0)
    rows = {row.metric: row for row in watch_rows(found)}
    assert set(rows) == {"processor_share", "discarded_samples"}
    assert rows["discarded_samples"].labels["unwatched"] == (
        "waiting for a processor, limits of the container, memory pressure, "
        "steal and other processes"
    )


class Library:
    """A management library that plays a part, and refuses what it is not given."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVML_CLOCK_SM = 1

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        def asked(*_: object) -> Any:
            if name not in self.answers:
                raise self.NVMLError(name)
            return self.answers[name]

        return asked


PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"


def test_a_gpu_is_asked_for_other_processes_and_its_clock(clock: SimpleNamespace) -> None:
    own, other = SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=-1)
    assert GpuWatch(Library(), None).disturbed() == ""
    assert GpuWatch(Library(), None).clock_hertz() is None
    assert GpuWatch(Library(**{PROCESSES: [own]}), None).disturbed() == ""
    assert GpuWatch(Library(**{PROCESSES: [own, own]}), None).others() == 0
    assert GpuWatch(Library(**{PROCESSES: [other]}), None).others() == 0  # ours, in a container
    busy = GpuWatch(Library(**{PROCESSES: [own, other]}), None)
    assert busy.disturbed() == "other processes on the GPU"
    hot = GpuWatch(
        Library(**{PROCESSES: [own], REASONS: 0x20, "nvmlDeviceGetClockInfo": 900}), None
    )
    assert hot.disturbed() == "GPU clock lowered: heat"
    watch = Watch(torch.device("cuda"), counters=Played(lambda: clock.at), gpu=hot)
    found = watch.rounds(lambda number: {"model": watch.sample(lambda: 1.0)}, 3, repeat_s=0.0)
    assert found.disturbed == "GPU clock lowered: heat (3 of 3 samples)"
    assert found.clock == 1.0

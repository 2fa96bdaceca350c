"""How many planted disturbances are recognised, and how many quiet measurements are marked.

    python tests/benchmarks/noise.py --json rows.jsonl              # 100 of each, about 10 minutes
    python tests/benchmarks/noise.py --json rows.jsonl --trials 30  # 30 more of them, and so on

Run it on a machine that does nothing else. A trial is a measurement as the runners take it: two
calls in turns, watched, disturbed samples repeated within a budget. Before it, the same calls are
timed without a watch, in quiet, for a quarter of a second at least. Planted trials and quiet ones
take turns in a drawn order; what kind of disturbance, how strong, when it begins, how long a call
takes, how many threads it has: all is drawn from a seed, so trial i is the same work on any run.
Trials that the file has already are not done again, and the counts are those of the whole file.

Planted: processes that compute on the same processor, several of them, short bursts, processes that
copy memory or write files on other processors, stopping and continuing the measured process, and a
limit of the control group (as root, with control groups of version 1).

A planted trial counts as recognised where the measurement is marked as disturbed, or where samples
were discarded and the median of the others is that of the quiet calls just before, to within
`--resolution`. Of the rest, those whose median is as near are listed apart: nothing was disturbed
that could be seen. What is left was missed. A quiet trial is marked wrongly where
it is marked as disturbed; how many had other load than ours, by the count of the system, is printed
beside it, since such a mark is right.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.reports.statistics.intervals import wilson_interval
from lra.runners.measurement.disturbance import load, scatter_reason
from lra.runners.measurement.measure import in_turns, time_call, without_collection
from lra.runners.measurement.watch import Watch
from lra.runners.measurement.witnesses import Counters

CPU = torch.device("cpu")
SEED = 17
GROUP = Path("/sys/fs/cgroup/cpu/lra-noise")
KINDS = ("spin", "several", "bursts", "memory", "files", "stop")
if os.geteuid() == 0 and (GROUP.parent / "cpu.cfs_quota_us").exists():
    KINDS += ("throttle",)
SECONDS = (3e-4, 3e-3, 3e-2, 1e-1)
"""What a call takes, about."""
REPEAT_S = 1.0

BUSY = """
import os, sys, time
kind, on, off, late, cores = sys.argv[1], *map(float, sys.argv[2:5]), sys.argv[5]
if cores:
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
parent, end = int(sys.argv[6]), time.monotonic() + 60
large = bytearray(1 << 26) if kind == "memory" else b""
other = bytearray(large)
print("ready", flush=True)
time.sleep(late)
while time.monotonic() < end and os.getppid() == parent:
    until = time.perf_counter() + on
    if kind == "stop":
        os.kill(parent, 19)
        time.sleep(on)
        os.kill(parent, 18)
    while kind != "stop" and time.perf_counter() < until:
        if kind == "memory":
            other[:] = large
        elif kind == "files":
            with open(sys.argv[7], "wb") as file:
                file.write(b"x" * (1 << 24))
                os.fsync(file.fileno())
    if off:
        time.sleep(off)
"""


class Trial:
    """One measurement, quiet or disturbed: everything about it is drawn from its number."""

    def __init__(self, number: int) -> None:
        draw = random.Random(f"{SEED} {number // 2}")
        first = draw.random() < 0.5
        self.number = number
        self.planted = (number % 2 == 0) == first
        cores = len(os.sched_getaffinity(0))
        self.kind = KINDS[number // 2 % len(KINDS)]
        self.seconds = draw.choice(SECONDS)
        self.threads = draw.choice((1, cores))
        self.steps = draw.choice((5, 10))
        self.on = draw.uniform(2e-3, 2e-2)
        # One that lies wholly before or behind the samples disturbs nothing, and is none.
        longest = max(1e-3, self.steps * self.seconds)
        self.off = min(self.on * draw.uniform(0.5, 3.0), longest)
        self.late = draw.uniform(0.0, 0.3) * min(1.0, 20 * self.steps * self.seconds)
        self.processes = draw.randint(2, 2 * cores)
        self.quota = draw.uniform(0.2, 0.7)

    def facts(self) -> dict[str, Any]:
        """Return what was drawn."""
        names = ("number", "planted", "kind", "seconds", "threads", "steps", "on", "off", "late")
        found = {name: getattr(self, name) for name in names}
        found |= {"processes": self.processes, "quota": self.quota}
        return found if self.planted else {**found, "kind": "quiet"}

    @contextmanager
    def disturbance(self, folder: Path) -> Iterator[None]:
        """Disturb this process, once it is under way."""
        cores = sorted(os.sched_getaffinity(0))
        if not self.planted:
            yield
            return
        if self.kind == "throttle":
            with _throttled(self.quota):
                yield
            return
        steady = self.kind not in ("bursts", "stop")
        words = [self.kind, "60" if steady else str(self.on), "0" if steady else str(self.off)]
        words += [str(self.late), str(cores[0]) if self.kind in ("spin", "bursts") else ""]
        words += [str(os.getpid()), str(folder / "noise.bin")]
        count = self.processes if self.kind == "several" else 1
        started = [
            subprocess.Popen([sys.executable, "-c", BUSY, *words], stdout=subprocess.PIPE)
            for _ in range(count)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                process.stdout.readline()
            yield
        finally:
            for process in started:
                process.kill()
                process.wait()
            os.kill(os.getpid(), signal.SIGCONT)


@contextmanager
def _throttled(quota: float) -> Iterator[None]:
    GROUP.mkdir(exist_ok=True)
    (GROUP / "cpu.cfs_quota_us").write_text(str(int(100_000 * quota)))
    (GROUP / "cgroup.procs").write_text(str(os.getpid()))
    try:
        yield
    finally:
        (GROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        GROUP.rmdir()


def calls_of(seconds: float) -> dict[str, Callable[[], object]]:
    """Return two calls that take about so long each, of matrix products, additions and a copy."""
    side = 96 if seconds < 1e-3 else 256
    x = torch.randn(side, side) / side**0.5

    def once() -> torch.Tensor:
        return torch.softmax(x @ x, -1) + x

    time_call(once, CPU)
    each = min(time_call(once, CPU) for _ in range(20))
    count = max(1, round(seconds / each))

    def work() -> None:
        for _ in range(count):
            once()

    return {"model": work, "reference": work}


def for_a_while(call: Callable[[], object]) -> None:
    """Call for a quarter of a second, and at least once."""
    end = time.perf_counter() + 0.25
    call()
    while time.perf_counter() < end:
        call()


def measured(trial: Trial, folder: Path) -> dict[str, Any]:
    """Do one trial, and return what there is to say about it."""
    torch.set_num_threads(trial.threads)
    cores = sorted(os.sched_getaffinity(0))
    pinned = trial.planted and trial.threads == 1 and trial.kind in ("spin", "bursts")
    if pinned:  # threads that exist already stay where they are; this one does the work
        os.sched_setaffinity(0, cores[:1])
    calls = calls_of(trial.seconds)
    for_a_while(calls["model"])
    with without_collection():
        before, end = [], time.perf_counter() + 0.25
        while len(before) < trial.steps or time.perf_counter() < end:
            before.append(time_call(calls["model"], CPU))
            time_call(calls["reference"], CPU)
    os.sched_setaffinity(0, cores)
    with trial.disturbance(folder):
        if pinned:
            os.sched_setaffinity(0, cores[:1])
        counters = Counters()
        first = counters.machine()
        watch = Watch(CPU)
        for_a_while(calls["model"])  # as a runner builds, warms up and counts bytes
        begun = time.perf_counter()
        watched = in_turns(calls, watch, trial.steps, repeat_s=REPEAT_S)
        took = time.perf_counter() - begun
        last = counters.machine()
        os.sched_setaffinity(0, cores)
    others = load(first, last, counters.tick) if first and last else None
    kept = watched.samples("model")
    every = [each["model"].seconds for each in watched.every]
    quiet = median(before)
    marked = watched.disturbed or scatter_reason(kept)
    return {
        **trial.facts(),
        "marked": marked,
        "discarded": watched.discarded,
        "causes": [next((s.reason for s in r.values() if s.reason), "") for r in watched.every],
        "quiet": quiet,
        "kept_over_quiet": median(kept) / quiet,
        "every_over_quiet": median(every) / quiet,
        "kept_over_reference": median(kept) / median(watched.samples("reference")),
        "took": took,
        "others": others and others.others,
        "steal": others and others.steal,
        "unwatched": watched.unwatched,
        "samples": every,
        "before": before,
        "shares": [
            {n: getattr(s.shares, n) for n in s.shares.__slots__}
            for r in watched.every for s in r.values()
        ],
    }  # fmt: skip


def share(found: int, count: int) -> str:
    """Return a count with the 95 % interval of its share."""
    if not count:
        return "0 of 0"
    interval = wilson_interval(found / count, count)
    return f"{found} of {count} [{interval.low:.1%}, {interval.high:.1%}]"


def conclude(rows: list[dict[str, Any]], resolution: float) -> None:
    """Print the counts of all trials."""
    planted = [row for row in rows if row["planted"]]
    quiet = [row for row in rows if not row["planted"]]
    moved = {row["number"] for row in rows if abs(row["kept_over_quiet"] - 1) > resolution}
    known = [r for r in planted if r["marked"] or (r["discarded"] and r["number"] not in moved)]
    rest = [row for row in planted if row not in known]
    missed = [row for row in rest if row["number"] in moved]
    print(f"planted, recognised         {share(len(known), len(planted))}")
    print(f"  of them marked            {share(sum(bool(r['marked']) for r in known), len(known))}")
    print(f"  not, and no effect seen   {len(rest) - len(missed)} (within {resolution:.0%})")
    print(f"  missed                    {len(missed)}")
    for kind in KINDS:
        own = [row for row in planted if row["kind"] == kind]
        slowed = [row["every_over_quiet"] for row in own]
        if own:
            seen = sum(row in known for row in own)
            print(f"    {kind:10} {seen} of {len(own)}; with no repeats {median(slowed):.2f}x")
    wrong = [row for row in quiet if row["marked"]]
    loaded = [row for row in wrong if (row["others"] or 0) > 0.05 or (row["steal"] or 0) > 0.05]
    print(f"quiet, marked               {share(len(wrong), len(quiet))}")
    print(f"  where others used > 5 %   {len(loaded)}")
    print(f"  samples discarded         {sum(r['discarded'] for r in quiet)} in "
          f"{sum(bool(r['discarded']) for r in quiet)} trials")  # fmt: skip
    apart = sorted(abs(row["kept_over_quiet"] - 1) for row in quiet)
    if apart:
        print(f"  median against the calls before: 95 % within "
              f"{apart[int(0.95 * (len(apart) - 1))]:.1%}")  # fmt: skip


def main() -> None:
    """Do the trials that are not there yet, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, help="rows, one trial a line")
    parser.add_argument("--trials", type=int, default=200, help="how many more at most")
    parser.add_argument("--until", type=int, default=200, help="trials in all, half are planted")
    parser.add_argument("--resolution", type=float, default=0.1, help="of one median, as a share")
    arguments = parser.parse_args()
    text = arguments.json.read_text() if arguments.json.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    todo = sorted(set(range(arguments.until)) - {row["number"] for row in rows})
    with arguments.json.open("a") as file:
        for number in todo[: arguments.trials]:
            rows.append(measured(Trial(number), arguments.json.resolve().parent))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
            row = rows[-1]
            print(
                f"{number:4} {row['kind']:9}{row['seconds']:7.4f} s x{row['threads']}: "
                f"{row['kept_over_quiet']:.2f}x, {row['discarded']} discarded; {row['marked']}",
                flush=True,
            )
    (arguments.json.resolve().parent / "noise.bin").unlink(missing_ok=True)
    conclude(rows, arguments.resolution)


if __name__ == "__main__":
    main()

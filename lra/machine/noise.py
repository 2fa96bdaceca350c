"""`lra doctor --noise`: which differences in time this machine resolves, and what disturbs it.

One fixed operation is timed interleaved with itself, as a model is with a reference, for four
durations. How far the median ratio of n such pairs lies from 1, which is the truth, in 95 of 100
draws, is what a comparison on this machine can resolve. The time alone is judged likewise, against
its median over everything: without a partner, drift counts.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lra.conf.processors import processors
from lra.runners.measurement.disturbance import THROTTLED, WAITED
from lra.runners.measurement.measure import time_call, warm_up, without_collection
from lra.runners.measurement.watch import Round, Rounds, Watch, cause
from lra.terminal.screen import table

SECONDS = (1e-4, 1e-3, 1e-2, 1e-1)
"""How long one call takes, about."""
EACH_S = 6.0
"""Wall clock for each of these."""
COUNTS = (5, 10, 30)
"""Samples behind one median: those of long calls, of others, and as many as one may ask for."""
LEAST_PAIRS, MOST_PAIRS = 3, 1000
DRAWS = 4000
LEVEL = 0.95
SEED = 11
CPU = torch.device("cpu")
ADVICE = {
    WAITED: "end other programs, or give them separate processors: `taskset -c 0-3 lra run …` uses "
    "four, hardware.threads=N uses fewer",
    "load of other processes": "end other programs: they share caches and memory with the timing, "
    "even on other processors",
    "its processor was taken away": "another virtual machine ran, or a signal stopped the process: "
    "use a machine that you share with nobody, take more samples, or use ratios alone",
    "processor taken by another virtual machine": "use a machine that you share with nobody, take "
    "more samples, or use ratios alone",
    THROTTLED: "give the container whole processors, or use fewer threads: hardware.threads=N",
    "memory ran short": "end other programs, or measure shorter sequences",
    "pages read from disk": "free memory: programs and data were read from the disk again",
}
"""What to do about each cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFinding:
    """The noise of calls of one length of time."""

    seconds: float
    """Median of one call."""
    pairs: int
    disturbed: dict[str, int]
    """Pairs by what disturbed them."""
    ratio: dict[int, float]
    """By the number of samples: ratios up to this one, or down to its inverse, may be noise."""
    time: dict[int, float]
    """The same of one median time against another."""
    shares: dict[str, float | None]
    """What the machine did meanwhile, as a share of the clock or of all processors."""


def resolution(values: Sequence[float], count: int) -> float:
    """Return the factor within which medians of `count` values lie about the truth, 1.

    Args:
        values: ratios of equal things, as measured.
        count: how many are behind one median.
    """
    drawn = np.random.default_rng(SEED).choice(np.asarray(values), size=(DRAWS, count))
    away = np.abs(np.log(np.median(drawn, axis=1)))
    return float(np.exp(np.quantile(away, LEVEL)))


def work(seconds: float) -> Callable[[], object]:
    """Return a call of about so many seconds: matrix products, exponentials, additions."""
    side = 96 if seconds < 1e-3 else 256
    x = torch.randn(side, side, generator=torch.Generator().manual_seed(SEED)) / side**0.5

    def once() -> object:
        return torch.softmax(x @ x, -1) + x

    time_call(once, CPU)
    count = max(1, round(seconds / min(time_call(once, CPU) for _ in range(20))))

    def call() -> None:
        for _ in range(count):
            once()

    return call


def finding(watched: Rounds) -> NoiseFinding:
    """Return what the rounds of two equal calls, a and b, tell."""
    first, other = (np.asarray(watched.samples(name)) for name in ("a", "b"))
    every: list[Round] = watched.every
    middle = float(np.median(first))
    shares = watched.shares
    return NoiseFinding(
        seconds=middle,
        pairs=len(every),
        disturbed=dict(Counter(filter(None, map(cause, every)))),
        ratio={count: resolution((first / other).tolist(), count) for count in COUNTS},
        time={count: resolution((first / middle).tolist(), count) for count in COUNTS},
        shares={
            "processor": shares.processor / watched.threads,
            "waiting": shares.waiting,
            "taken away": shares.absent,
            "steal": shares.steal,
            "other load": shares.other_load,
        },
    )


def time_in_turns(seconds: float, watch: Watch, budget_s: float) -> Rounds:
    """Time two equal calls, interleaved, until `budget_s` is over; nothing is repeated."""
    call = work(seconds)
    warm_up(call, CPU, least=2, long_s=0.5, most=3)
    every: list[Round] = []
    end = time.perf_counter() + budget_s
    with without_collection():
        while len(every) < LEAST_PAIRS or (len(every) < MOST_PAIRS and time.perf_counter() < end):
            order = "ab" if len(every) % 2 else "ba"
            every.append({name: watch.sample(partial(time_call, call, CPU)) for name in order})
    return watch.judged(every, len(every))


def noise(*, as_json: bool, each_s: float = EACH_S) -> int:
    """Measure and print; 1 where more than half of the samples of some length were disturbed."""
    torch.set_num_threads(min(torch.get_num_threads(), processors()))
    watch = Watch(CPU)
    findings: list[NoiseFinding] = []
    unwatched: tuple[str, ...] = ()
    for number, seconds in enumerate(SECONDS, 1):
        about = f"{number} of {len(SECONDS)}: calls of {seconds * 1e3:g} ms, for {each_s:.0f} s"
        print(about, file=sys.stderr, flush=True)
        watched = time_in_turns(seconds, watch, each_s)
        findings.append(finding(watched))
        unwatched = watched.unwatched
    unfit = any(sum(finding_.disturbed.values()) > finding_.pairs / 2 for finding_ in findings)
    if as_json:
        print(json.dumps(_findings_json(findings, unwatched, watch.threads), indent=2))
    else:
        print("\n".join(_table_lines(findings, unwatched, watch.threads)))
    return 1 if unfit else 0


def _findings_json(
    rows: list[NoiseFinding], unwatched: tuple[str, ...], threads: int
) -> dict[str, Any]:
    lengths = [{name: getattr(finding, name) for name in finding.__slots__} for finding in rows]
    return {"threads": threads, "level": LEVEL, "unwatched": unwatched, "lengths": lengths}


def _table_lines(
    findings: list[NoiseFinding], unwatched: tuple[str, ...], threads: int
) -> list[str]:
    head = ["one call", *(f"ratio, {n}" for n in COUNTS), *(f"time, {n}" for n in COUNTS)]
    rows = [(*head, "disturbed")]
    for finding in findings:
        resolved = [f"{finding.ratio[n]:.3f}" for n in COUNTS] + [
            f"{finding.time[n]:.3f}" for n in COUNTS
        ]
        lost = sum(finding.disturbed.values())
        rows.append((f"{finding.seconds * 1e3:.2f} ms", *resolved, f"{lost} of {finding.pairs}"))
    causes: Counter[str] = Counter()
    for finding in findings:
        causes.update(finding.disturbed)
    lines = [
        f"Two equal calls of {threads} threads, interleaved: the factor within which medians of "
        f"{', '.join(map(str, COUNTS[:-1]))} or {COUNTS[-1]} samples",
        f"agree in {LEVEL:.0%} of cases. If a ratio is closer to 1 than this factor, it shows no "
        "difference.",
        "",
        table(rows, indent=""),
        "",
    ]
    for name in findings[-1].shares:
        shares = [finding.shares[name] for finding in findings]
        texts = [f"{share:.1%}" for share in shares if share is not None]
        lines.append(f"{name:12}{'   '.join(texts) if texts else 'unknown on this machine'}")
    if unwatched:
        lines.append(f"unknown on this machine: {', '.join(unwatched)}")
    lines.append("")
    for words, count in causes.most_common():
        lines.append(f"{count} pairs: {words}")
        advice = ADVICE.get(words.partition(":")[0], "measure again, with more samples")
        lines.append(f"     remedy: {advice}")
    return lines if causes else [*lines, "no sample was disturbed"]

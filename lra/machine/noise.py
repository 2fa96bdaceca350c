"""`lra doctor --noise`: measure which differences in time this machine can detect.

Two equal calls a and b are timed alternately, as lra times a model and its reference. The true
ratio of their times is 1. lra draws n pairs at random 4,000 times and computes the median ratio of
each draw; 95 of 100 medians lie between 1/f and f. A measured ratio within these limits may be
noise. The same is done with the time of a alone divided by its overall median, where slow changes
of the machine's speed count, too. Four durations of the calls are measured.
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
"""Approximate durations of one call."""
EACH_S = 6.0
"""Seconds spent on each duration."""
COUNTS = (5, 10, 30)
"""Numbers of samples n: lra takes 5 of long calls and 10 of other calls; users may ask for 30."""
LEAST_PAIRS, MOST_PAIRS = 3, 1000
DRAWS = 4000
LEVEL = 0.95
SEED = 11
CPU = torch.device("cpu")
ADVICE = {
    WAITED: "end other programs, or give lra separate processors: with `taskset -c 0-3 lra run …` "
    "it uses processors 0 to 3, and hardware.threads=N makes it use only N threads",
    "load of other processes": "end other programs, because they use the same caches and memory "
    "as the timed call, even if they run on other processors",
    "its processor was taken away": "another virtual machine used the processor, or a signal "
    "stopped the process; use a machine that you share with nobody, take more samples, or compare "
    "ratios only",
    "processor taken by another virtual machine": "use a machine that you share with nobody, take "
    "more samples, or compare ratios only",
    THROTTLED: "give the container whole processors, or use fewer threads by hardware.threads=N",
    "memory ran short": "end other programs, or measure shorter sequences",
    "pages read from disk": "end other programs to free memory, because the machine had to read "
    "programs and data from the disk again",
}
"""A remedy for each cause of disturbed timings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFinding:
    """The noise of calls of one duration."""

    seconds: float
    """Median time of one call."""
    pairs: int
    disturbed: dict[str, int]
    """The number of disturbed pairs, by cause."""
    ratio: dict[int, float]
    """The factor f, by the number of samples: a ratio between 1/f and f may be noise."""
    time: dict[int, float]
    """The same factor for the ratio of two median times that were not measured alternately."""
    shares: dict[str, float | None]
    """What the machine did meanwhile, as shares of the elapsed time or of all processors."""


def resolution(values: Sequence[float], count: int) -> float:
    """Return the factor f for which 95 % of medians of `count` values lie between 1/f and f.

    Args:
        values: Measured ratios of two equal times; the true ratio is 1.
        count: The number of values in one median; they are drawn with replacement.
    """
    drawn = np.random.default_rng(SEED).choice(np.asarray(values), size=(DRAWS, count))
    distances = np.abs(np.log(np.median(drawn, axis=1)))
    return float(np.exp(np.quantile(distances, LEVEL)))


def work(seconds: float) -> Callable[[], object]:
    """Return a function that computes for about `seconds`: matrix products, softmax, additions."""
    side = 96 if seconds < 1e-3 else 256  # small enough to repeat it within a short call
    x = torch.randn(side, side, generator=torch.Generator().manual_seed(SEED)) / side**0.5

    def compute_once() -> object:
        return torch.softmax(x @ x, -1) + x

    time_call(compute_once, CPU)
    count = max(1, round(seconds / min(time_call(compute_once, CPU) for _ in range(20))))

    def compute() -> None:
        for _ in range(count):
            compute_once()

    return compute


def finding(watched: Rounds) -> NoiseFinding:
    """Return the noise that the timed rounds of two equal calls, named a and b, show."""
    times_a, times_b = (np.asarray(watched.samples(name)) for name in ("a", "b"))
    every: list[Round] = watched.every
    median = float(np.median(times_a))
    shares = watched.shares
    return NoiseFinding(
        seconds=median,
        pairs=len(every),
        disturbed=dict(Counter(filter(None, map(cause, every)))),
        ratio={count: resolution((times_a / times_b).tolist(), count) for count in COUNTS},
        time={count: resolution((times_a / median).tolist(), count) for count in COUNTS},
        shares={
            "processor": shares.processor / watched.threads,
            "waiting": shares.waiting,
            "taken away": shares.absent,
            "steal": shares.steal,
            "other load": shares.other_load,
        },
    )


def time_in_turns(seconds: float, watch: Watch, budget_s: float) -> Rounds:
    """Time two equal calls of about `seconds` alternately, until `budget_s` seconds are over.

    Disturbed rounds stay in the result, because they are what this command looks for.
    """
    call = work(seconds)
    warm_up(call, CPU, least=2, long_s=0.5, most=3)
    every: list[Round] = []
    end = time.perf_counter() + budget_s
    with without_collection():
        while len(every) < LEAST_PAIRS or (len(every) < MOST_PAIRS and time.perf_counter() < end):
            order = "ab" if len(every) % 2 else "ba"  # so that neither always comes first
            every.append({name: watch.sample(partial(time_call, call, CPU)) for name in order})
    return watch.judged(every, len(every))


def noise(*, as_json: bool, each_s: float = EACH_S) -> int:
    """Measure the noise of this machine and print it.

    Args:
        as_json: Whether to print JSON instead of a table.
        each_s: Seconds spent on each duration of the calls.

    Returns:
        The exit code: 1 if more than half of the pairs of some duration were disturbed, else 0.
    """
    torch.set_num_threads(min(torch.get_num_threads(), processors()))
    watch = Watch(CPU)
    findings: list[NoiseFinding] = []
    unwatched: tuple[str, ...] = ()
    for number, seconds in enumerate(SECONDS, 1):
        print(
            f"step {number} of {len(SECONDS)}: timing calls of {seconds * 1e3:g} ms for "
            f"{each_s:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        watched = time_in_turns(seconds, watch, each_s)
        findings.append(finding(watched))
        unwatched = watched.unwatched
    unfit = any(sum(result.disturbed.values()) > result.pairs / 2 for result in findings)
    if as_json:
        print(json.dumps(_findings_as_json(findings, unwatched, watch.threads), indent=2))
    else:
        print("\n".join(_write_lines(findings, unwatched, watch.threads)))
    return 1 if unfit else 0


def _findings_as_json(
    findings: list[NoiseFinding], unwatched: tuple[str, ...], threads: int
) -> dict[str, Any]:
    """Return the object that `lra doctor --noise --json` prints."""
    lengths = [{name: getattr(result, name) for name in result.__slots__} for result in findings]
    return {"threads": threads, "level": LEVEL, "unwatched": unwatched, "lengths": lengths}


def _write_lines(
    findings: list[NoiseFinding], unwatched: tuple[str, ...], threads: int
) -> list[str]:
    """Return the lines to print: a table of factors, what the machine did, causes and remedies.

    Args:
        findings: The noise of each duration.
        unwatched: Causes of disturbance that this machine cannot detect.
        threads: The number of threads of a call.
    """
    head = ["one call", *(f"ratio, {n}" for n in COUNTS), *(f"time, {n}" for n in COUNTS)]
    rows = [(*head, "disturbed")]
    for finding in findings:
        factors = [finding.ratio[n] for n in COUNTS] + [finding.time[n] for n in COUNTS]
        texts = [f"{factor:.3f}" for factor in factors]
        disturbed = sum(finding.disturbed.values())
        rows.append((f"{finding.seconds * 1e3:.2f} ms", *texts, f"{disturbed} of {finding.pairs}"))
    causes: Counter[str] = Counter()
    for finding in findings:
        causes.update(finding.disturbed)
    lines = [
        f"lra timed two equal calls of {threads} threads alternately. The table shows the factor "
        "within which the",
        f"medians of {', '.join(map(str, COUNTS[:-1]))} or {COUNTS[-1]} samples agree in "
        f"{LEVEL:.0%} of cases. A ratio of two times that is closer "
        "to 1 than this factor shows no difference.",
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
    for cause_text, count in causes.most_common():
        lines.append(f"{count} pairs: {cause_text}")
        advice = ADVICE.get(cause_text.partition(":")[0], "measure again with more samples")
        lines.append(f"     remedy: {advice}")
    return lines if causes else [*lines, "no sample was disturbed"]

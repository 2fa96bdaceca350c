"""What one model costs at one length: time, memory, operations, and those of the references.

`forward` is one pass in eval mode without gradients; `step` is a training step: forward, backward,
gradient clipping off, fused AdamW, gradients set to None. Inputs are random token ids of exactly
that length, no padding, made before the clock starts. The batch is `token_budget // length`
sequences (at least one), or a fixed number: the two are never mixed in one run. References (exact
attention through SDPA, and literal softmax) are the same backbone with another mixer, timed in
turns with the model in the same process, so that a ratio compares neighbours in time. One that is
refused or runs out of memory costs only its own rows.
"""

import gc
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import partial
from statistics import median
from typing import ClassVar

import torch

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone, TaskFacts
from lra.models.mixer import Unsupported
from lra.runners.isolation.child import MEMORY_WORDS
from lra.runners.isolation.progress import phase, within
from lra.runners.measurement.growth import foretold
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.measure import (
    in_turns,
    observe,
    process_peak_bytes,
    stalls,
    synchronise,
    timed,
)
from lra.runners.measurement.timing import Timing, check_limit
from lra.runners.measurement.watched_rows import marked, over_limit, watch_rows
from lra.runners.measures.bench import Bench, CostMode
from lra.runners.records import Measurement, Status
from lra.runners.runner import OWN, Direction, Passes, Runner, Work, disturbed, values

OBSERVED = 4
"""Passes besides the warm-up and the samples: the first call, the one that is held against the
limit, memory, operations."""
SURELY = 2.0
"""Times the limit that a curve's growth must reach for a length to be left out untried."""


class Batching(StrEnum):
    """How many sequences a batch holds."""

    token_budget = auto()
    fixed = auto()


@by_name
@dataclass(frozen=True, kw_only=True)
class Scaling(Timing, Runner):
    """How cost is measured against length."""

    outcome: ClassVar[str] = "time"
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    by_length: ClassVar[bool] = True

    lengths: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048, 4096, 8192])
    modes: list[CostMode] = field(default_factory=lambda: [CostMode.forward, CostMode.step])
    direction: Direction = Direction.task
    references: list[str] = field(default_factory=lambda: ["sdpa", "softmax"])
    """Families that are measured with the model."""
    reference_max_length: dict[str, int] = field(default_factory=lambda: {"softmax": 4096})
    """Longest length at which a reference is measured; no entry = at all."""
    batch: Batching = Batching.token_budget
    batch_size: int | None = None
    """Sequences in a batch, for `batch: fixed` only."""
    step_limit_s: float | None = 30.0
    """A model whose second call takes longer is left out, with a row that says so; so is a length
    that by the curve's own growth takes `SURELY` times as long."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths are one or more positive numbers: got {self.lengths}")
        if not self.modes:
            raise ValueError("modes is empty: wanted forward, step or both")
        if (self.batch is Batching.fixed) != (self.batch_size is not None):
            raise ValueError(
                "batch=fixed goes with a batch_size, batch=token_budget without: got "
                f"batch={self.batch}, batch_size={self.batch_size}"
            )
        check_least(1, batch_size=self.batch_size)
        check_limit(self.step_limit_s)
        for name, longest in self.reference_max_length.items():
            if longest < 1:
                raise ValueError(f"reference_max_length.{name} must be at least 1: got {longest}")

    @property
    def facing(self) -> Direction:
        """As the options say."""
        return self.direction

    @property
    def beside(self) -> Sequence[str]:
        """The references."""
        return self.references

    def passes(self, work: Work) -> list[Passes]:
        """Return warm-up, samples and the passes that are observed, of model and references."""
        rows = self.sequences(work.length, work.hardware.token_budget)
        step = work.mode == CostMode.step
        longest = self.reference_max_length
        names = [
            name
            for name in self.references
            if name != work.model and work.length <= longest.get(name, work.length)
        ]
        times = self.warmup_steps + self.timed_steps + OBSERVED
        return [
            Passes(times, rows, work.length, step, name=name, measured=True)
            for name in (OWN, *names)
        ]

    def too_long(
        self, mode: str, length: int, took: Mapping[int, float], hardware: HardwareProfile
    ) -> str:
        """Continue the last growth of the time of one sequence."""
        limit = self.step_limit_s
        rows = partial(self.sequences, budget=hardware.token_budget)
        each = foretold({tokens: time / rows(tokens) for tokens, time in took.items()}, length)
        if limit is None or each is None or each.seconds * rows(length) <= SURELY * limit:
            return ""
        return (
            f"not tried: by the growth from {each.shorter:,} to {each.longer:,} tokens one {mode} "
            f"would take {each.seconds * rows(length):.1f} s, more than {SURELY:g} times the limit "
            f"of {limit:g} s (runner.step_limit_s; null tries all)"
        )

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the cost of one pass or step."""
        return scale(
            lambda name: work.build(max_length=work.length, name=name),
            model=work.model,
            length=work.length,
            mode=CostMode[work.mode],
            config=self,
            hardware=work.hardware,
            seed=work.seed,
            facts=work.facts(work.length),
        )

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return time and memory of a sequence, and what disturbed the first."""
        numbers = values(rows)
        memory = numbers.get("peak_tensor_bytes")
        spent = "" if memory is None else f", {memory / 2**20:.0f} MiB"
        time = numbers.get("time")
        return f"{time * 1e3:.1f} ms{spent}{disturbed(rows, 'time')}" if time is not None else ""

    def sequences(self, length: int, budget: int) -> int:
        """Return how many sequences of `length` a batch holds; under a budget, at least one."""
        return max(1, budget // length) if self.batch_size is None else self.batch_size


def scale(
    build: Callable[[str], Backbone],
    *,
    model: str,
    length: int,
    mode: CostMode,
    config: Scaling,
    hardware: HardwareProfile,
    seed: int,
    facts: TaskFacts,
) -> Iterator[Measurement]:
    """Measure one model at one length, and yield rows.

    Args:
        build: makes the model for the name "model", or the same backbone with a reference's mixer.
        model: the model's name; a reference of that name is left out.
        length: tokens per sequence.
        mode: forward or step.
        config: how to measure.
        hardware: where, and how precisely.
        seed: of the inputs.
        facts: what the model answers.
    """
    bench = Bench(
        build,
        facts,
        length=length,
        mode=mode,
        sequences=config.sequences(length, hardware.token_budget),
        long_step_s=config.long_step_s,
        hardware=hardware,
        seed=seed,
    )
    phase("building")
    call = bench.prepare(OWN)
    phase("first call")
    first = timed(call, bench.device)
    sample = config.tried(call, bench.watch, limit := config.step_limit_s)
    if limit is not None and sample.seconds > limit:
        took = f"one {mode} took {sample.seconds:.1f} s"
        yield over_limit("time", took, sample, option="step_limit_s", limit_s=limit)
        return
    if hardware.compile:
        yield Measurement(metric="compile_time", value=first)
    slowest = sample.seconds
    if slowest <= config.long_step_s:
        slowest = config.warm(call, bench.device)
    phase("measuring memory")
    peak, bench.kernel = observe(call, bench.device)
    yield Measurement(metric="peak_tensor_bytes", value=float(peak))
    if mode is CostMode.step:
        yield Measurement(metric="saved_bytes", value=float(bench.saved()))
    yield Measurement(metric="process_peak_bytes", value=float(process_peak_bytes()))

    calls = {OWN: call}
    for name in config.references:
        if name == model:
            continue
        with within(f"reference {name}"):
            measured = yield from _reference(bench, config, name, peak)
        if measured is not None:
            calls[name], seconds = measured
            slowest = max(slowest, seconds)

    yield from _times(bench, config, calls, slowest)
    phase("counting operations")
    yield from bench.model_facts(call)


def _reference(
    bench: Bench, config: Scaling, name: str, model_peak: int
) -> Generator[Measurement, None, tuple[Callable[[], object], float] | None]:
    """Build, warm up and weigh one reference; return its call and its time.

    None after a row that says why it has no result.

    A reference that runs out of memory is caught here, and only here: the model's own result must
    not be lost to it.
    """
    labels = {"reference": name}

    def failed(status: Status, reason: str) -> Measurement:
        return Measurement(metric="time_ratio", status=status, reason=reason, labels=labels)

    limit = config.reference_max_length.get(name)
    if limit is not None and bench.length > limit:
        reason = f"{name} is measured up to {limit:,} tokens (runner.reference_max_length)"
        yield failed(Status.skipped, reason)
        return None
    try:
        phase("first call")
        call = bench.prepare(name)
        seconds = config.warm(call, bench.device)
        phase("measuring memory")
        peak = observe(call, bench.device).peak_tensor_bytes
    except Unsupported as error:
        yield failed(Status.unsupported, str(error))
        return None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not MEMORY_WORDS.search(str(error)):
            raise
        reason = " ".join(str(error).split())[:300] or "no memory left"
    else:
        yield Measurement(metric="reference_peak_tensor_bytes", value=float(peak), labels=labels)
        yield Measurement(metric="peak_tensor_bytes_ratio", value=model_peak / peak, labels=labels)
        return call, seconds
    # Outside the handler, whose traceback would keep the tensors of the failed call alive.
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    synchronise(bench.device)
    yield failed(Status.out_of_memory, reason)
    return None


def _times(
    bench: Bench, config: Scaling, calls: dict[str, Callable[[], object]], slowest: float
) -> Iterator[Measurement]:
    """Time everything in turns; yield times and paired ratios."""
    rounds = config.rounds(slowest)
    watched = in_turns(calls, bench.watch, rounds, repeat_s=config.repeat_limit_s)
    bench.watched, samples = watched, watched.samples(OWN)
    bench.seconds = median(samples)
    tokens = float(bench.tokens.numel())
    labels = bench.trusted({"kernel": bench.kernel} if bench.kernel else {})
    yield Measurement(metric="time", value=bench.seconds, samples=samples, labels=labels)
    rate, labels = tokens / bench.seconds, bench.trusted({})
    yield Measurement(metric="tokens_per_second", value=rate, labels=labels)
    yield Measurement(metric="timed_steps", value=float(len(samples)))
    yield Measurement(metric="stalls", value=float(stalls(samples)))
    yield from watch_rows(watched)
    for name in calls:
        if name == OWN:
            continue
        theirs, labels = watched.samples(name), {"reference": name}
        ratios = tuple(mine / other for mine, other in zip(samples, theirs, strict=True))
        yield Measurement(
            metric="reference_time",
            value=median(theirs),
            samples=theirs,
            labels=bench.trusted(labels, name),
        )
        yield Measurement(
            metric="time_ratio",
            value=median(ratios),
            samples=ratios,
            labels=marked(labels, watched, ratios),
        )

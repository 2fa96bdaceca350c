"""Time, memory and operations of one model at one length, compared with references.

In mode `forward` a call is a forward pass in evaluation mode, without gradients. In mode `step` it
is a training step: forward pass, backward pass without clipping, fused AdamW, gradients set to
None. Inputs are random token ids of exactly the length, without padding, drawn before the clock
starts. A batch has `token_budget // length` sequences (at least one), or a fixed number.
References (exact attention through SDPA, and plain softmax attention) are the same backbone with
another mixer. They are timed interleaved with the model in the same process, so that a ratio
compares calls that are close in time. If a reference is refused or runs out of memory, only its
rows are missing. Runs of a sweep that differ only in their model are timed interleaved with each
other, too, and share their references.
"""

import gc
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import partial
from statistics import median
from typing import ClassVar, NamedTuple

import torch

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.conf.system_errors import out_of_memory
from lra.models.backbone.model import Backbone
from lra.models.kernels.door import check_used, kernel_labels, session_is_open
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase, phase_prefix
from lra.runners.measurement.growth import foretold
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.measure import (
    Call,
    compared_in_turns,
    observe,
    process_peak_bytes,
    stalls,
    synchronise,
    time_call,
    try_call,
)
from lra.runners.measurement.timing import Timing, check_limit
from lra.runners.measurement.watch import Rounds, Sample
from lra.runners.measurement.watched_rows import mark_labels, over_limit, processor_rows, watch_rows
from lra.runners.measures.bench import Bench, CostMode
from lra.runners.records import Measurement, Status
from lra.runners.runner import OWN, Direction, Passes, Probe, Runner, Work, noise_note, values

OBSERVED = 4
"""Passes besides warm-up and timed ones: the first one, the one that is compared with the limit,
and one each for memory and operations."""
SURELY = 2.0
"""A length is skipped if its predicted time is more than so many times the limit."""


class Batching(StrEnum):
    """What decides how many sequences a batch has."""

    token_budget = auto()
    """The number of tokens in `hardware.token_budget`."""
    fixed = auto()
    """The option `batch_size`."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Scaling(Timing, Runner):
    """How time and memory are measured at each length."""

    outcome: ClassVar[str] = "time"
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    by_length: ClassVar[bool] = True
    compares: ClassVar[bool] = True

    lengths: list[int] = field(default_factory=lambda: [256, 512, 1024, 2048, 4096, 8192])
    modes: list[CostMode] = field(default_factory=lambda: [CostMode.forward, CostMode.step])
    direction: Direction = Direction.task
    references: list[str] = field(default_factory=lambda: ["sdpa", "softmax"])
    """Families that are measured together with the model."""
    reference_max_length: dict[str, int] = field(default_factory=lambda: {"softmax": 4096})
    """Longest length in tokens at which a reference is measured; a reference that is not named here
    is measured at every length."""
    batch: Batching = Batching.token_budget
    batch_size: int | None = None
    """Sequences in a batch; needs batch=fixed."""
    step_limit_s: float | None = 30.0
    """If the second call of a model or reference takes more seconds than this (waiting for other
    processes excluded), it is not timed, and a row says so. A length is skipped if its predicted
    time is more than twice this limit. None: there is no limit."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths: got {self.lengths}; wanted one or more positive numbers")
        if not self.modes:
            raise ValueError("modes: got an empty list; wanted forward, step or both")
        if (self.batch is Batching.fixed) != (self.batch_size is not None):
            raise ValueError(
                "batch=fixed needs a batch_size, and batch=token_budget needs batch_size=null: "
                f"got batch={self.batch}, batch_size={self.batch_size}"
            )
        check_least(1, batch_size=self.batch_size)
        check_limit(self.step_limit_s)
        for name, longest in self.reference_max_length.items():
            if longest < 1:
                raise ValueError(
                    f"reference_max_length.{name} must be at least 1 token: got {longest}"
                )

    @property
    def facing(self) -> Direction:
        """Return the direction that the options name."""
        return self.direction

    @property
    def beside(self) -> Sequence[str]:
        """Return the names of the references."""
        return self.references

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes of the model and its references: warm-up, timed and observed ones."""
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
        """Return why a length is skipped, by a prediction from the last two shorter lengths."""
        limit = self.step_limit_s
        rows = partial(self.sequences, budget=hardware.token_budget)
        # Time per sequence, because batches of longer sequences have fewer of them.
        forecast = foretold({tokens: time / rows(tokens) for tokens, time in took.items()}, length)
        if limit is None or forecast is None or forecast.seconds * rows(length) <= SURELY * limit:
            return ""
        return (
            f"not tried: judging by the times at {forecast.shorter:,} and {forecast.longer:,} "
            f"tokens, one {mode} would take {forecast.seconds * rows(length):.1f} s, more than "
            f"{SURELY:g} times the limit of {limit:g} s (runner.step_limit_s; null tries every "
            "length)"
        )

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield time, memory and operations of a forward pass or training step."""
        return scale(self._bench({OWN: work}), self, work.model)

    def probe(self, work: Work) -> Iterator[Measurement | Probe]:
        """Yield the memory of a call, and a `Probe` unless the call is too slow to be timed."""
        contender = yield from _probe_model(self._bench({OWN: work}), self, work.model)
        if contender is not None:
            names = ("peak", "kernel", "forms")
            yield Probe({name: getattr(contender, name) for name in names})

    def compare(
        self, works: Mapping[str, Work], probed: Mapping[str, Probe]
    ) -> Iterator[tuple[str, Measurement]]:
        """Time the models interleaved with each other and with the references; yield the rows.

        The facts of a `Probe` are those of its `Contender`: see `probe`.
        """
        contenders = {
            key: Contender(
                model=work.model,
                is_reference=frozenset(filter(work.is_reference, self.references)),
                **probed[key].facts,
            )
            for key, work in works.items()
        }
        return _compare_models(self._bench(works), self, contenders)

    def _bench(self, works: Mapping[str, Work]) -> Bench:
        """Return a bench that builds the models of `works` by their keys, and the references.

        The runs differ only in their model, so the first one gives all other settings.
        """
        first = next(iter(works.values()))

        def build(name: str) -> Backbone:
            if name in works:
                return works[name].build(max_length=first.length)
            return first.build(max_length=first.length, name=name)

        return Bench(
            build,
            first.facts(first.length),
            length=first.length,
            mode=CostMode[first.mode],
            sequences=self.sequences(first.length, first.hardware.token_budget),
            long_step_s=self.long_step_s,
            hardware=first.hardware,
            seed=first.seed,
        )

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the time and memory of a call, and what disturbed the time."""
        numbers = values(rows)
        time, peak = numbers.get("time"), numbers.get("peak_tensor_bytes")
        memory = "" if peak is None else f", {peak / 2**20:.0f} MiB"
        return f"{time * 1e3:.1f} ms{memory}{noise_note(rows, 'time')}" if time is not None else ""

    def sequences(self, length: int, budget: int) -> int:
        """Return how many sequences of `length` a batch holds; under a budget, at least one."""
        return max(1, budget // length) if self.batch_size is None else self.batch_size


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A model that is timed interleaved with others."""

    model: str
    """Name of its family; it is not compared with a reference of this name."""
    peak: int
    """Peak bytes of tensors during one pass."""
    kernel: str
    """The kernel of fused attention; "" for none."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """Labels that say which public kernels ran: see `lra.models.kernels.door.kernel_labels`."""
    is_reference: frozenset[str] = frozenset()
    """References that are equal to this model."""
    call: Call | None = None
    """The call that is timed; None: it must be built, because another process probed the model."""
    seconds: float = 0.0
    """Seconds that the call took in the probe."""


class TimedCalls(NamedTuple):
    """The call of one model or reference that is timed."""

    call: Call
    seconds: float
    """Seconds of one call after warm-up."""


class Reference(NamedTuple):
    """A reference that models are compared with."""

    name: str
    call: str
    """Key of the call that is timed. A model that equals the reference shares its call with it."""
    peak: int
    """Peak bytes of tensors during one pass."""
    too_slow: Measurement | None = None
    """The row which says that the reference is too slow to be timed; None: it is timed."""


def scale(bench: Bench, config: Scaling, model: str) -> Iterator[Measurement]:
    """Measure one model and the references, and yield the rows.

    Args:
        bench: builds the model (by the name `OWN`) and the references, and has the batch.
        config: how to measure.
        model: name of the model; a reference of this name is skipped.
    """
    contender = yield from _probe_model(bench, config, model)
    if contender is not None:
        yield from (row for _, row in _compare_models(bench, config, {OWN: contender}))


def _probe_model(
    bench: Bench, config: Scaling, model: str
) -> Generator[Measurement, None, Contender | None]:
    """Yield the rows of one model that need no comparison, and return what is timed later.

    None is returned if one call takes more than `step_limit_s` seconds, so nothing is timed.
    """
    phase("building")
    call = bench.prepare(OWN)
    phase("first call")
    first_s = time_call(call, bench.device)
    check_used()
    sample = try_call(call, bench.watch)
    slow = _check_limit("time", sample, bench, config, **kernel_labels())
    if slow is not None:
        yield slow
    if bench.hardware.compile:
        yield Measurement(metric="compile_time", value=first_s)
    yield Measurement(metric="batch_size", value=float(bench.sequences))
    phase("measuring memory")
    peak, kernel = observe(call, bench.device)
    yield Measurement(metric="peak_tensor_bytes", value=float(peak))
    if bench.mode is CostMode.step:
        yield Measurement(metric="saved_bytes", value=float(bench.saved(OWN)))
    yield Measurement(metric="process_peak_bytes", value=float(process_peak_bytes()))
    if slow is not None:  # operations can be counted although the call is too slow to be timed
        phase("counting operations")
        yield from bench.counted_rows(OWN, call, sample.seconds)
        return None
    return Contender(
        model=model, peak=peak, kernel=kernel, forms=kernel_labels(), call=call,
        seconds=sample.seconds,
    )  # fmt: skip


def _check_limit(
    metric: str, sample: Sample, bench: Bench, config: Scaling, **labels: str
) -> Measurement | None:
    """Return a row which says that a call exceeds `step_limit_s`; None if it does not."""
    return over_limit(
        metric, f"one {bench.mode}", sample, bench.watch.threads,
        option="step_limit_s", limit_s=config.step_limit_s, labels=labels,
    )  # fmt: skip


def _compare_models(
    bench: Bench, config: Scaling, contenders: Mapping[str, Contender]
) -> Iterator[tuple[str, Measurement]]:
    """Time models interleaved with their references; yield the key of a model with each row.

    Args:
        bench: builds models and has the batch.
        config: how to measure.
        contenders: the models, by key.
    """
    calls: dict[str, TimedCalls] = {}
    for key, contender in contenders.items():
        call, seconds = contender.call, contender.seconds
        if call is None:
            call = bench.prepare(key)
            if session_is_open():  # this process compares and tunes kernels in the first call
                time_call(call, bench.device)
        is_long = seconds > config.long_step_s  # a long call gets no further warm-up
        calls[key] = TimedCalls(call, seconds if is_long else config.warm(call, bench.device))
    references: dict[str, list[Reference]] = {key: [] for key in contenders}
    for name in config.references:
        keys = [key for key, contender in contenders.items() if contender.model != name]
        with phase_prefix(f"reference {name}"):  # None if every model is this family itself
            reference = _prepare_reference(bench, config, name, contenders, calls) if keys else None
        for key in keys:
            if isinstance(reference, Measurement):
                yield key, reference
            elif reference is not None:
                if reference.too_slow is None:
                    references[key].append(reference)
                else:
                    yield key, reference.too_slow
                yield from ((key, row) for row in _compare_memory(contenders[key], reference))
    # For each model, the keys of the calls that are timed in the same rounds: its own comes first.
    compared = {key: (key, *(each.call for each in references[key])) for key in contenders}
    rounds = {
        key: config.rounds(max(calls[name].seconds for name in compared[key])) for key in compared
    }
    # By speed, so that no slow call lies in time between a fast one and its reference.
    ordered = sorted(calls, key=lambda name: calls[name].seconds)
    for number in dict.fromkeys(rounds.values()):  # models with equally many rounds together
        keys = [key for key in contenders if rounds[key] == number]
        together = [compared[key] for key in keys]
        names = {name for group in together for name in group}
        timings = compared_in_turns(
            {name: calls[name].call for name in ordered if name in names},
            bench.watch, number, together, repeat_s=config.repeat_limit_s,
        )  # fmt: skip
        for key, watched in zip(keys, timings, strict=True):
            yield from (
                (key, row)
                for row in _compare_times(bench, contenders[key], key, references[key], watched)
            )
            phase("counting operations")
            yield from ((key, row) for row in bench.model_facts(key, calls[key].call, watched))


def _compare_memory(contender: Contender, reference: Reference) -> Iterator[Measurement]:
    """Yield the peak memory of a reference, and the model's peak memory divided by it."""
    labels = {"reference": reference.name}
    theirs, ratio = float(reference.peak), contender.peak / reference.peak
    yield Measurement(metric="reference_peak_tensor_bytes", value=theirs, labels=labels)
    yield Measurement(metric="peak_tensor_bytes_ratio", value=ratio, labels=labels)


def _prepare_reference(
    bench: Bench,
    config: Scaling,
    name: str,
    contenders: Mapping[str, Contender],
    made: dict[str, TimedCalls],
) -> Reference | Measurement:
    """Return the reference `name`, or a row which says why it is missing.

    If the reference is equal to one of the contenders, the call of the contender is used.
    Otherwise the reference is built and warmed up, and its memory is measured. If it runs out of
    memory, the results of a single contender must not be lost, so a row is returned. With several
    contenders the error is raised, because their memory may be the cause.

    Args:
        bench: builds models and has the batch.
        config: how to measure.
        name: the family of the reference.
        contenders: the models that are compared with the reference, by key.
        made: the calls that are timed, by key; the call of the reference is added.
    """
    labels = {"reference": name}

    def failure_row(status: Status, reason: str) -> Measurement:
        return Measurement(metric="time_ratio", status=status, reason=reason, labels=labels)

    limit = config.reference_max_length.get(name)
    if limit is not None and bench.length > limit:
        reason = f"{name} is measured only up to {limit:,} tokens (runner.reference_max_length)"
        return failure_row(Status.skipped, reason)
    for key, contender in contenders.items():
        if name in contender.is_reference:
            return Reference(name, key, contender.peak)
    call: Call | None = None
    try:
        phase("first call")
        call = bench.prepare(name)
        seconds = config.warm(call, bench.device)
        slow = None
        if config.step_limit_s is not None and seconds > config.step_limit_s:
            slow = _check_limit("time_ratio", try_call(call, bench.watch), bench, config, **labels)
        if slow is None:
            made[name] = TimedCalls(call, seconds)
        phase("measuring memory")
        return Reference(name, name, observe(call, bench.device).peak_tensor_bytes, slow)
    except Unsupported as error:
        return failure_row(Status.unsupported, str(error))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error) or len(contenders) > 1:
            raise
        reason = " ".join(str(error).split())[:300] or "no memory left"
    # Not inside `except`, because the traceback of the error keeps the tensors of the call alive.
    call = None
    for references in (made, bench.models):
        references.pop(name, None)
    gc.collect()
    if bench.device.type == "cuda":
        torch.cuda.empty_cache()
    synchronise(bench.device)
    return failure_row(Status.out_of_memory, reason)


def _compare_times(
    bench: Bench,
    contender: Contender,
    key: str,
    references: Sequence[Reference],
    watched: Rounds,
) -> Iterator[Measurement]:
    """Yield the times of a model and of its references, and the ratios of these times.

    Args:
        bench: has the batch.
        contender: the model.
        key: key of the model's call in `watched`.
        references: the references that were timed together with the model.
        watched: the samples of all these calls.
    """
    samples = watched.samples(key)
    seconds, tokens = median(samples), float(bench.tokens.numel())
    labels = {"kernel": contender.kernel} if contender.kernel else {}
    labels = mark_labels({**labels, **contender.forms}, watched, samples)
    yield Measurement(metric="time", value=seconds, samples=samples, labels=labels)
    rate, labels = tokens / seconds, mark_labels({}, watched, samples)
    yield Measurement(metric="tokens_per_second", value=rate, labels=labels)
    yield Measurement(metric="timed_steps", value=float(len(samples)))
    yield Measurement(metric="stalls", value=float(stalls(samples)))
    yield from watch_rows(watched)
    yield from processor_rows(watched, key, {each.call: each.name for each in references})
    for reference in references:
        theirs, labels = watched.samples(reference.call), {"reference": reference.name}
        ratios = tuple(mine / other for mine, other in zip(samples, theirs, strict=True))
        for metric, numbers in (("reference_time", theirs), ("time_ratio", ratios)):
            yield Measurement(
                metric=metric,
                value=median(numbers),
                samples=numbers,
                labels=mark_labels(labels, watched, numbers),
            )

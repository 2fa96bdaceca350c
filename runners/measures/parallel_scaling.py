"""How much faster several processes take one training step than one process alone.

A run has n = `hardware.processes` processes, each with a device (or with
`hardware.training_threads` threads). It times a training step interleaved in two ways: by all
processes together, and by the first process alone while the others wait. Two neighbouring times, t
alone and t together, give the efficiency:

- `weak`: every device gets the tokens of one batch. The efficiency is t alone / t together; 1 is
  ideal, because then n devices do n times the work in the same time.
- `strong`: all devices share the tokens of one batch. The efficiency is t alone / (n t together);
  1 is ideal again.

The batch of one device has `token_budget // length` sequences of random tokens, at least one. With
`hardware.sharded` the weights are split among the processes (FSDP2).
Processes on one processor share the bandwidth of its memory, which then limits the efficiency. If
they have more threads than cores, no efficiency is reported: a row states the reason, and times are
marked as disturbed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum, auto
from statistics import median
from typing import ClassVar

import torch

from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.kernels.door import check_used, kernel_labels
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import MEASURING_S, phase, so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.disturbance import scatter_reason
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.inputs import random_inputs
from lra.runners.measurement.measure import observe, time_call, without_collection
from lra.runners.measurement.timing import Timing
from lra.runners.records import DISTURBED, Measurement, Status
from lra.runners.runner import Passes, Runner, Work, noise_note, values
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import build_optimiser, set_rates
from lra.runners.training.parallel.crowding import crowding_reason
from lra.runners.training.parallel.gradients import PartLoss, SynchronisedLoss, shard
from lra.runners.training.parallel.ranks import Ranks, join_ranks
from lra.runners.training.parallel.traffic import Traffic
from lra.runners.training.prefetch import to_device
from lra.tasks.task import Batch

Step = Callable[[], object]


class ScalingLoad(StrEnum):
    """What stays constant when devices are added."""

    weak = auto()
    """The number of tokens on each device."""
    strong = auto()
    """The number of tokens on all devices together."""


@by_name
@dataclass(frozen=True, kw_only=True)
class ParallelScaling(Timing, Runner):
    """How a training step is timed on several devices."""

    outcome: ClassVar[str] = "tokens_per_second"
    tabled: ClassVar[tuple[str, ...]] = (
        "tokens_per_second", "tokens_per_second_per_device", "scaling_efficiency",
        "bytes_sent_per_step", "bytes_sent_per_step_in_total", "peak_tensor_bytes",
    )  # fmt: skip
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    parallel: ClassVar[bool] = True
    by_length: ClassVar[bool] = True

    lengths: list[int] = field(default_factory=lambda: [1024])
    modes: list[ScalingLoad] = field(default_factory=lambda: [ScalingLoad.weak, ScalingLoad.strong])
    alone: bool = True
    """Whether the first process is timed alone, too; set False for a model that is too large for
    one device."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        super().__post_init__()
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError(f"lengths: got {self.lengths}; wanted one or more positive numbers")
        if not self.modes:
            raise ValueError("modes: got an empty list; wanted weak, strong or both")

    def passes(self, work: Work) -> Sequence[Passes]:
        """Check the batch, then raise `Uncounted`, because the time to send gradients is unknown.

        Raises:
            Unsupported: A process would have no sequence: see `batch_of`.
            Uncounted: Always, if the batch is large enough.
        """
        batch_of(ScalingLoad[work.mode], work.length, work.hardware)
        return super().passes(work)

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the rows of one run; every process measures, and the first one stores the rows."""
        with join_ranks(work.hardware) as ranks:
            yield from measure(work, ranks, ScalingLoad[work.mode], self)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return tokens per second, and the efficiency if it is known."""
        numbers = values(rows)
        rate, efficiency = numbers.get("tokens_per_second"), numbers.get("scaling_efficiency")
        ending = "" if efficiency is None else f", efficiency {efficiency:.2f}"
        if rate is None:
            return ""
        return f"{rate:,.0f} tokens/s{ending}{noise_note(rows, 'tokens_per_second')}"


def measure(
    work: Work, ranks: Ranks, load: ScalingLoad, config: ParallelScaling
) -> Iterator[Measurement]:
    """Time the step of all processes and of the first one alone; every process must call this."""
    hardware, length = work.hardware, work.length
    device = torch.device(str(hardware.device))
    sequences = batch_of(load, length, hardware)
    single = max(1, hardware.token_budget // length)
    phase("building")
    labels = hardware.labels()
    model = work.build(max_length=length).to(device)
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
    together = _build_step(work, model, ranks, sequences, device)
    calls, crowd = {"together": together}, crowding_reason(ranks, device)
    compared = config.alone and not ranks.alone
    if compared and not crowd:
        calls["alone"] = _wait
        if ranks.first:
            model = work.build(max_length=length).to(device)
            # `Ranks()` is one process that synchronises with no other.
            calls["alone"] = _build_step(work, model, Ranks(), single, device)
    phase("warming up")
    last_s = 0.0  # of the last call: of the first process alone, or, if untimed, of all together
    for _ in range(max(2, config.warmup_steps)):  # the first call sets up connections
        for call in calls.values():
            ranks.wait()
            last_s = time_call(call, device)
    check_used()
    rounds = config.rounds(ranks.largest(last_s))
    times = _time_interleaved(calls, ranks, device, rounds)
    with Traffic() as traffic:
        together()
    ranks.wait()
    peaks = ranks.gathered(observe(together, device).peak_tensor_bytes)
    sent = ranks.gathered(traffic.sent)

    ours, tokens = times["together"], float(sequences * length)
    why = crowd or scatter_reason(ours)
    marked = {**labels, DISTURBED: why} if why else labels
    seconds = median(ours)
    forms = {**marked, **kernel_labels()}
    yield Measurement(metric="train_step_time", value=seconds, samples=ours, labels=forms)
    yield Measurement(metric="tokens_per_second", value=tokens / seconds, labels=marked)
    rate = tokens / seconds / ranks.size
    yield Measurement(metric="tokens_per_second_per_device", value=rate, labels=marked)
    if "alone" in times:
        factor = 1 if load is ScalingLoad.weak else ranks.size
        ratios = tuple(t1 / (factor * tn) for t1, tn in zip(times["alone"], ours, strict=True))
        why = scatter_reason(ratios)
        yield Measurement(
            metric="scaling_efficiency",
            value=median(ratios),
            samples=ratios,
            labels={**labels, DISTURBED: why} if why else labels,
        )
    elif compared:
        reason = f"{crowd}; lower hardware.processes or hardware.training_threads"
        yield Measurement(
            metric="scaling_efficiency", status=Status.skipped, reason=reason, labels=labels
        )
    for metric, value in (
        ("bytes_sent_per_step", max(sent)),
        ("bytes_sent_per_step_in_total", sum(sent)),
        ("peak_tensor_bytes", max(peaks)),
        ("parameters", parameters),
        ("batch_size", sequences),
        ("timed_steps", len(ours)),
    ):
        yield Measurement(metric=metric, value=float(value), labels=labels)


def batch_of(load: ScalingLoad, length: int, hardware: HardwareProfile) -> int:
    """Return how many sequences all processes together have in a step.

    Raises:
        Unsupported: there are fewer sequences than processes.
    """
    processes, single = hardware.processes, max(1, hardware.token_budget // length)
    sequences = single * processes if load is ScalingLoad.weak else single
    if sequences < processes:
        raise Unsupported(
            f"each of {processes} devices needs a sequence, but a batch has only {sequences} of "
            f"{length:,} tokens; raise hardware.token_budget to {processes * length:,}"
        )
    return sequences


def _build_step(
    work: Work, model: Backbone, ranks: Ranks, sequences: int, device: torch.device
) -> Step:
    """Return a function that trains `model` one step (AdamW, no clipping) on a shared batch."""
    hardware, length = work.hardware, work.length
    optim = OptimConfig(clip=None)
    model.train()
    part_loss = PartLoss(model, model, 0.0)  # without label smoothing
    if ranks.sharded:
        shard(model, optim, device)
    synchronised = None if ranks.alone else SynchronisedLoss(part_loss, sharded=ranks.sharded)
    optimiser = build_optimiser(model, optim)
    set_rates(optimiser, 1e-4)  # any small rate: it changes no time
    tokens, target = random_inputs(sequences, length, work.facts(length), work.seed)
    batch = to_device(ranks.part_of(Batch(tokens, target, torch.arange(sequences))), device)
    # The targets of all processes, and the fraction of the sequences that this process has.
    total, share = float(target.numel()), batch.target.shape[0] / sequences

    def step() -> None:
        with nullcontext() if synchronised is None else synchronised.adding(last=True):
            call = part_loss if synchronised is None else synchronised.call
            with autocast(hardware):
                loss, _state = call(batch, None, None, total, share)
            torch.autograd.backward(loss)
        optimiser.step()
        optimiser.zero_grad()

    return step


def _wait() -> None:
    """Do nothing while another process is timed."""


def _time_interleaved(
    calls: dict[str, Step], ranks: Ranks, device: torch.device, rounds: int
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of each call in each round, as the slowest process measured them."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with without_collection():
        for number in range(rounds):
            so_far("timing", number, rounds, "sample", MEASURING_S)
            for name in list(calls)[:: 1 if number % 2 == 0 else -1]:  # every other round reversed
                ranks.wait()
                seconds[name].append(time_call(calls[name], device))
    by_rank = ranks.gathered(seconds)
    return {
        name: tuple(max(times) for times in zip(*(rank[name] for rank in by_rank), strict=True))
        for name in calls
    }

"""One batch on one machine, and the calls to measure: a pass or a training step of a model."""

from collections.abc import Callable, Iterator
from enum import StrEnum, auto
from statistics import median

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from lra.models.backbone.model import Backbone, TaskFacts
from lra.models.contract.counting import count_operations, fake_tensors, saved_bytes
from lra.runners.measurement.device import DTYPES, autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.inputs import random_inputs
from lra.runners.measurement.measure import machine_rates
from lra.runners.measurement.watch import Rounds, Watch
from lra.runners.measurement.watched_rows import mark_labels
from lra.runners.records import Measurement
from lra.runners.training.objective import whole_batch
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import build_optimiser, set_rates

_RATES = frozenset({"flops_per_second", "utilisation"})
"""Rates that follow from the time, and are as uncertain."""


class CostMode(StrEnum):
    """What is measured."""

    forward = auto()
    step = auto()


class Bench:
    """One batch, and the calls that are measured with it.

    Args:
        build: makes a model by its name, or the same backbone with the mixer of a reference.
        facts: what the model answers.
        length: tokens of a sequence.
        mode: forward or step.
        sequences: of the batch.
        long_step_s: where a call takes longer, operations are counted without doing them.
        hardware: where, and how precisely.
        seed: of the inputs.
    """

    def __init__(
        self,
        build: Callable[[str], Backbone],
        facts: TaskFacts,
        *,
        length: int,
        mode: CostMode,
        sequences: int,
        long_step_s: float,
        hardware: HardwareProfile,
        seed: int,
    ) -> None:
        self.build, self.length, self.mode = build, length, mode
        self.sequences, self.long_step_s, self.hardware = sequences, long_step_s, hardware
        self.device = torch.device(str(hardware.device))
        self.tokens, self.target = random_inputs(self.sequences, length, facts, seed)
        self.tokens, self.target = self.tokens.to(self.device), self.target.to(self.device)
        self.models: dict[str, Backbone] = {}
        self.watch = Watch(self.device)

    def prepare(self, name: str) -> Callable[[], object]:
        """Build a model and return the call to measure."""
        model = self.build(name).to(self.device)
        if self.hardware.compile:
            for block in model.blocks:
                block.compile()
        self.models[name] = model
        if self.mode is CostMode.forward:
            model.eval()
            return lambda: self._forward(model)
        model.train()
        optimiser = build_optimiser(model, OptimConfig(clip=None))
        set_rates(optimiser, 1e-4)

        def step() -> None:
            torch.autograd.backward(self._loss(model))
            optimiser.step()
            optimiser.zero_grad()

        return step

    def _forward(self, model: Backbone) -> Tensor:
        with torch.inference_mode(), autocast(self.hardware):
            nll: Tensor = model(self.tokens, self.target).nll
            return nll

    def _loss(self, model: Backbone) -> Tensor:
        with autocast(self.hardware):
            return whole_batch(model(self.tokens, self.target))

    def saved(self, name: str) -> int:
        """Return the bytes of activations that autograd saves for backward."""
        model = self.models[name]
        exclude = [*model.parameters(), *model.buffers(), self.tokens, self.target]
        return saved_bytes(lambda: self._loss(model), exclude)

    def operations(self, name: str, call: Callable[[], object], seconds: float) -> int:
        """Count matrix operations in one more pass, or, if it is long, without computing it."""
        if seconds <= self.long_step_s and not self.hardware.compile:
            return count_operations(call)
        try:
            return self._operations_without_work(name)
        except DynamicOutputShapeException:  # a table in groups: which one depends on the ids
            if self.hardware.compile:
                raise
            return count_operations(call)

    def _operations_without_work(self, name: str) -> int:
        with fake_tensors():
            model = self.build(name)
            tokens = torch.empty_like(self.tokens, device="cpu")
            target = torch.empty_like(self.target, device="cpu")

            def once() -> None:
                outcome = model(tokens, target)
                if self.mode is CostMode.step:
                    torch.autograd.backward(whole_batch(outcome))

            with torch.set_grad_enabled(self.mode is CostMode.step):
                return count_operations(once)

    def counted_rows(
        self, name: str, call: Callable[[], object], seconds: float
    ) -> Iterator[Measurement]:
        """Yield the counts of a model whose call takes so many seconds."""
        parameters = sum(p.numel() for p in self.models[name].parameters() if p.requires_grad)
        for metric, value in (
            ("flops", self.operations(name, call, seconds)),
            ("parameters", parameters),
        ):
            yield Measurement(metric=metric, value=float(value))

    def model_facts(
        self, name: str, call: Callable[[], object], watched: Rounds
    ) -> Iterator[Measurement]:
        """Yield counts and rates of a model, whose times are in `watched`."""
        samples = watched.samples(name)
        seconds = median(samples)
        flops, *others = self.counted_rows(name, call, seconds)
        yield from (flops, *others)
        rate = (flops.value or 0.0) / seconds
        measured, bandwidth = machine_rates(self.device, DTYPES[self.hardware.precision])
        peak = self.hardware.peak_flops_per_second or measured
        for metric, value in (
            ("flops_per_second", rate),
            ("matrix_rate", measured),
            ("bandwidth", bandwidth),
            ("utilisation", rate / peak),
        ):
            labels = mark_labels({}, watched, samples) if metric in _RATES else {}
            yield Measurement(metric=metric, value=float(value), labels=labels)

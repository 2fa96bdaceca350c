"""One batch on one machine, and what is called on it: a pass or a training step of a model."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum, auto

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from lra.models.backbone.model import Backbone, TaskFacts
from lra.models.contract.counting import count_operations, pretending, saved_bytes
from lra.runners.measurement.device import DTYPES, autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.inputs import random_inputs
from lra.runners.measurement.measure import machine_rates
from lra.runners.measurement.watch import Watch, Watched
from lra.runners.measurement.watched_rows import marked
from lra.runners.records import Measurement
from lra.runners.runner import OWN
from lra.runners.training.objective import whole_batch
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import build_optimiser, set_rates

_RATES = frozenset({"flops_per_second", "utilisation"})
"""What is divided by the time, and no better than it."""


class CostMode(StrEnum):
    """What is measured."""

    forward = auto()
    step = auto()


class Bench:
    """One batch, and the calls that are measured on it.

    Args:
        build: makes the model for the name `lra.runners.runner.OWN`, or the same backbone with the
            mixer of a reference.
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
        self.model: Backbone | None = None
        self.seconds = 0.0
        self.kernel = ""
        self.watch = Watch(self.device)
        self.watched = Watched(retained=[], every=[])

    def prepare(self, name: str) -> Callable[[], object]:
        """Build a model and return the call to measure."""
        model = self.build(name).to(self.device)
        if self.hardware.compile:
            for block in model.blocks:
                block.compile()
        if name == OWN:
            self.model = model
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

    def tested_model(self) -> Backbone:
        """Return the model under test."""
        if self.model is None:
            raise RuntimeError("prepare the model first")
        return self.model

    def saved(self) -> int:
        """Return the activation bytes that autograd keeps for backward."""
        model = self.tested_model()
        exclude = [*model.parameters(), *model.buffers(), self.tokens, self.target]
        return saved_bytes(lambda: self._loss(model), exclude)

    def operations(self, call: Callable[[], object]) -> int:
        """Count matrix operations: in one pass more, or without doing them where that is long."""
        if self.seconds <= self.long_step_s and not self.hardware.compile:
            return count_operations(call)
        try:
            return self._operations_without_work()
        except DynamicOutputShapeException:  # a table in groups: which one depends on the ids
            if self.hardware.compile:
                raise
            return count_operations(call)

    def _operations_without_work(self) -> int:
        with pretending():
            model = self.build(OWN)
            tokens = torch.empty_like(self.tokens, device="cpu")
            target = torch.empty_like(self.target, device="cpu")

            def once() -> None:
                outcome = model(tokens, target)
                if self.mode is CostMode.step:
                    torch.autograd.backward(whole_batch(outcome))

            with torch.set_grad_enabled(self.mode is CostMode.step):
                return count_operations(once)

    def model_facts(self, call: Callable[[], object]) -> Iterator[Measurement]:
        """Yield counts and rates."""
        model = self.tested_model()
        flops = self.operations(call)
        rate = flops / self.seconds
        measured, bandwidth = machine_rates(self.device, DTYPES[self.hardware.precision])
        peak = self.hardware.peak_flops_per_second or measured
        parameters = sum(p.numel() for p in model.parameters() if p.requires_grad)
        for metric, value in (
            ("flops", flops),
            ("flops_per_second", rate),
            ("matrix_rate", measured),
            ("bandwidth", bandwidth),
            ("utilisation", rate / peak),
            ("parameters", parameters),
            ("batch_size", self.sequences),
        ):
            labels = self.trusted({}) if metric in _RATES else {}
            yield Measurement(metric=metric, value=float(value), labels=labels)

    def trusted(self, labels: Mapping[str, str], name: str = OWN) -> dict[str, str]:
        """Return labels, with a mark where the times of this call were disturbed."""
        return marked(labels, self.watched, self.watched.samples(name))

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
from lra.runners.measurement.hardware import HardwareProfile, KernelChoice
from lra.runners.measurement.inputs import random_inputs
from lra.runners.measurement.measure import machine_rates
from lra.runners.measurement.watch import Rounds, Watch
from lra.runners.measurement.watched_rows import mark_labels
from lra.runners.records import Measurement
from lra.runners.training.objective import whole_batch
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import build_optimiser, set_rates

_RATES = frozenset({"flops_per_second", "utilisation"})
"""Rates that are computed from the time, so a disturbed time makes them uncertain, too."""


class CostMode(StrEnum):
    """Which call is measured."""

    forward = auto()
    """A forward pass without gradients."""
    step = auto()
    """A training step."""


class Bench:
    """One batch of random tokens, and the calls of models that are measured with it.

    Args:
        build: builds a model by its name, or the same backbone with the mixer of a reference.
        facts: the facts of the task that random inputs need, such as the vocabulary.
        length: tokens of each sequence.
        mode: whether a call is a forward pass or a training step.
        sequences: sequences in the batch.
        long_step_s: operations of a call that takes longer are counted without computing them.
        hardware: the device, and the number format of computations.
        seed: seed of the random inputs.
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
        """Build the model `name`, and return the call that is measured: a pass or a step."""
        model = self.build(name).to(self.device)
        if self.hardware.compile:
            for block in model.blocks:
                block.compile()
        self.models[name] = model
        if self.mode is CostMode.forward:
            model.eval()
            return lambda: self._run_forward(model)
        model.train()
        optimiser = build_optimiser(model, OptimConfig(clip=None))
        set_rates(optimiser, 1e-4)  # any small rate: it changes no time

        def step() -> None:
            torch.autograd.backward(self._compute_loss(model))
            optimiser.step()
            optimiser.zero_grad()

        return step

    def _run_forward(self, model: Backbone) -> Tensor:
        with torch.inference_mode(), autocast(self.hardware):
            nll: Tensor = model(self.tokens, self.target).nll
            return nll

    def _compute_loss(self, model: Backbone) -> Tensor:
        with autocast(self.hardware):
            return whole_batch(model(self.tokens, self.target))

    def saved(self, name: str) -> int:
        """Return how many bytes of activations autograd saves for the backward pass."""
        model = self.models[name]
        exclude = [*model.parameters(), *model.buffers(), self.tokens, self.target]
        return saved_bytes(lambda: self._compute_loss(model), exclude)

    def operations(self, name: str, call: Callable[[], object], seconds: float) -> int:
        """Return how many matrix operations one call of the model `name` does.

        If it takes more than `long_step_s` seconds, they are counted on tensors without data. On a
        GPU with public kernels they are, too, because our PyTorch operations, which are counted in
        place of the kernels, may need more memory than the GPU has.
        """
        own = self.hardware.kernels is KernelChoice.own or self.device.type == "cpu"
        if own and seconds <= self.long_step_s and not self.hardware.compile:
            return count_operations(call)
        try:
            return self._count_without_data(name)
        except DynamicOutputShapeException:  # shapes depend on the token ids, which fakes lack
            if self.hardware.compile:  # operators inside compiled code cannot be counted
                raise
            return count_operations(call)

    def _count_without_data(self, name: str) -> int:
        """Return how many operations a call of a newly built model does, on fake tensors."""
        with fake_tensors():
            model = self.build(name)
            tokens = torch.empty_like(self.tokens, device="cpu")
            target = torch.empty_like(self.target, device="cpu")

            def run_once() -> None:
                outcome = model(tokens, target)
                if self.mode is CostMode.step:
                    torch.autograd.backward(whole_batch(outcome))

            with torch.set_grad_enabled(self.mode is CostMode.step):
                return count_operations(run_once)

    def counted_rows(
        self, name: str, call: Callable[[], object], seconds: float
    ) -> Iterator[Measurement]:
        """Yield rows with the operations and parameters of the model `name`; see `operations`."""
        parameters = sum(p.numel() for p in self.models[name].parameters() if p.requires_grad)
        for metric, value in (
            ("flops", self.operations(name, call, seconds)),
            ("parameters", parameters),
        ):
            yield Measurement(metric=metric, value=float(value))

    def model_facts(
        self, name: str, call: Callable[[], object], watched: Rounds
    ) -> Iterator[Measurement]:
        """Yield rows with counts and rates of the model `name`; `watched` has its samples."""
        samples = watched.samples(name)
        seconds = median(samples)
        flops, *others = self.counted_rows(name, call, seconds)
        yield from (flops, *others)
        rate = (flops.value or 0.0) / seconds
        matrix_rate, bandwidth = machine_rates(self.device, DTYPES[self.hardware.precision])
        peak = self.hardware.peak_flops_per_second or matrix_rate
        for metric, value in (
            ("flops_per_second", rate),
            ("matrix_rate", matrix_rate),
            ("bandwidth", bandwidth),
            ("utilisation", rate / peak),
        ):
            labels = mark_labels({}, watched, samples) if metric in _RATES else {}
            yield Measurement(metric=metric, value=float(value), labels=labels)

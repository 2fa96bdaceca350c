"""Measurements of a compressed model: its scores, file, numbers, operations and time.

Every variant is compared with the uncompressed model of its run: both are timed interleaved, on the
same batch. A file of weights is written, read back and compared bit by bit before its size counts.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, TaskFacts
from lra.models.compression.int8 import codes_of
from lra.models.compression.storage import read_state, write_state
from lra.models.contract.counting import count_operations
from lra.runners.isolation.progress import phase, phase_prefix
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.inputs import random_inputs
from lra.runners.measurement.measure import in_turns
from lra.runners.measurement.timing import Timing
from lra.runners.measurement.watch import Watch
from lra.runners.measurement.watched_rows import mark_labels, watch_rows
from lra.runners.records import Measurement
from lra.runners.training.evaluate import evaluate, score_rows
from lra.tasks.task import Task

VARIANT, WHOLE = "variant", "whole"


@dataclass(frozen=True, kw_only=True)
class CompressedModel:
    """A model after compression."""

    model: Backbone
    labels: Mapping[str, str]
    """Labels of its rows: the method and the amount of compression."""


class VariantMeasurement:
    """Measures compressed variants of one model.

    Args:
        whole: The uncompressed model.
        task: The task, with prepared data.
        facts: The facts of the task that random inputs need, such as the vocabulary.
        splits: Splits on which models are scored.
        sequences: Sequences in the timed batch.
        evaluation_batch: Examples in a batch of the evaluation.
        timing: How many calls are timed.
        hardware: The device, and the number format of computations.
        seed: Seed of the timed inputs.
    """

    def __init__(
        self,
        whole: Backbone,
        task: Task,
        facts: TaskFacts,
        *,
        splits: list[str],
        sequences: int,
        evaluation_batch: int,
        timing: Timing,
        hardware: HardwareProfile,
        seed: int,
    ) -> None:
        self.whole, self.task, self.splits = whole, task, splits
        self.evaluation_batch, self.timing, self.hardware = evaluation_batch, timing, hardware
        self.device = torch.device(str(hardware.device))
        self.sequences = sequences
        tokens, target = random_inputs(sequences, facts.max_length, facts, seed)
        self.inputs = tokens.to(self.device), target.to(self.device)

    def rows(self, variant: CompressedModel) -> Iterator[Measurement]:
        """Yield all rows of one variant, which may be the uncompressed model."""
        model = variant.model.to(self.device).eval()
        labels = dict(variant.labels)
        with phase_prefix(" ".join(labels.values())):
            yield from self._measure_scores(model, labels)
            yield from file_sizes(model, labels)
            parameters, nonzero = numbers_of(model)
            for metric, value in (
                ("parameters", parameters),
                ("nonzero_parameters", nonzero),
                ("flops", count_operations(lambda: self._run_pass(model))),
                ("batch_size", self.sequences),
            ):
                yield Measurement(metric=metric, value=float(value), labels=labels)
            yield from self._measure_times(model, labels)

    def _measure_scores(self, model: Backbone, labels: dict[str, str]) -> Iterator[Measurement]:
        """Yield the scores on each split, without those of parts of a split."""
        for split in self.splits:
            with autocast(self.hardware):
                scores = evaluate(
                    model, self.task, split, batch_size=self.evaluation_batch, device=self.device
                )
            for row in score_rows(scores, labels):
                if "part" not in row.labels:
                    yield row

    def _run_pass(self, model: Backbone) -> Tensor:
        with torch.inference_mode(), autocast(self.hardware):
            nll: Tensor = model(*self.inputs).nll
            return nll

    def _measure_times(self, model: Backbone, labels: dict[str, str]) -> Iterator[Measurement]:
        """Time `model` interleaved with the uncompressed model; yield both times and ratios."""
        phase("timing")
        whole = self.whole.to(self.device).eval()
        calls = {VARIANT: lambda: self._run_pass(model), WHOLE: lambda: self._run_pass(whole)}
        slowest = max(self.timing.warm(call, self.device) for call in calls.values())
        rounds = self.timing.rounds(slowest)
        watched = in_turns(calls, Watch(self.device), rounds, repeat_s=self.timing.repeat_limit_s)
        ours, theirs = watched.samples(VARIANT), watched.samples(WHOLE)
        ratios = tuple(a / b for a, b in zip(ours, theirs, strict=True))
        for metric, samples in (
            ("compressed_time", ours), ("whole_time", theirs), ("compressed_time_ratio", ratios),
        ):  # fmt: skip
            mark = mark_labels(labels, watched, samples)
            value = median(samples)
            yield Measurement(metric=metric, value=value, samples=samples, labels=mark)
        yield from watch_rows(watched, labels)


def file_sizes(model: Backbone, labels: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the sizes in bytes of two files with the weights of a model.

    One file stores all weights (`dense`), the other one only those that are not 0 (`sparse`).

    Raises:
        RuntimeError: A tensor that was read back differs from the tensor that was written.
    """
    state = plain_state(model)
    with tempfile.TemporaryDirectory(prefix="lra-compress-") as folder:
        for storage in ("dense", "sparse"):
            path = Path(folder) / f"{storage}.safetensors"
            size = write_state(state, path, sparse=storage == "sparse")
            restored = read_state(path)
            for name, value in state.items():
                if not torch.equal(restored[name], value.cpu()):
                    raise RuntimeError(
                        f"tensor {name} changed when it was saved to a {storage} file and loaded "
                        "again"
                    )
            row_labels = {**labels, "storage": storage}
            yield Measurement(metric="disk_bytes", value=float(size), labels=row_labels)


def plain_state(model: Backbone) -> dict[str, Tensor]:
    """Return the weights and buffers of a model as plain tensors, by name.

    A tensor subclass that consists of several tensors, such as an 8-bit weight, gives each of its
    parts as `name.part`.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        parts = value.__tensor_flatten__()[0] if hasattr(value, "__tensor_flatten__") else ()
        tensors |= {f"{name}.{part}": getattr(value, part) for part in parts} or {name: value}
    return tensors


def numbers_of(model: Backbone) -> tuple[int, int]:
    """Return the number of parameters, and how many are not 0; an 8-bit one is 0 if its code is."""
    tensors = [codes_of(value) for value in model.parameters()]
    total = sum(value.numel() for value in tensors)
    return total, sum(int(value.count_nonzero()) for value in tensors)

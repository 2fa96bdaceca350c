"""How much attention each part of a memory gets, by age: compressed, remembered, and new tokens.

A text is read as in evaluation. Its keys, oldest first, form three regions, and each region is
divided into equal buckets:

    [ compressed memory | memory | segment ]

Once the memories of all layers are full, the attention weights of the queries of each segment are
summed over the keys of each bucket, as in figure 2 of Rae et al. 2019, arXiv:1911.05507. The mean
is over heads, queries and sequences; a sequence is one segment of one text.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.mixer import State, Unsupported
from lra.runners.isolation.progress import so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.attention.mass import recorded_masses, recurrent_mixers
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement
from lra.runners.runner import Passes, Work
from lra.runners.training.prefetch import to_device
from lra.runners.training.recurrent_state import remembered_tokens
from lra.tasks.task import SPLITS, Task, WindowedTask

REGIONS = ("compressed", "memory", "segment")
ALL = "all"


@by_name
@dataclass(frozen=True, kw_only=True)
class AttentionMass(TrainedRunner):
    """How much text is read, and how many buckets each region of keys has."""

    outcome: ClassVar[str] = "attention_mass"

    split: str = "validation"
    segments: int = 64
    """How many segments of each text are read with full memories."""
    batch_size: int = 8
    """The split is cut into this many texts, which are read in parallel."""
    buckets: int = 6
    """Number of buckets of each region; their sizes differ by at most one key."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if self.split not in SPLITS[1:]:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS[1:])}")
        check_least(1, segments=self.segments, batch_size=self.batch_size, buckets=self.buckets)

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over the segments; those that fill the memories come first."""
        task = work.task
        length = task.window(self.split) if isinstance(task, WindowedTask) else task.spec.max_length
        filling = remembered_tokens(work.backbone, task, training=False) / length
        # Reading the weights takes about as long as the pass itself.
        return [Passes(filling + 2 * self.segments, self.batch_size, length, False)]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the attention mass of every bucket, by layer and for all layers together."""
        model, origins = self.model_of(work)
        yield from origins
        yield from attention_mass(model, work.task, config=self, hardware=work.hardware)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the attention that each region gets, as a mean over all layers."""
        masses = [
            f"{row.labels['region']} {row.value:.3f}"
            for row in rows
            if row.metric == "attention_mass"
            and (row.labels["layer"], row.labels["bucket"]) == (ALL, ALL)
        ]
        return "attention: " + ", ".join(masses)


def attention_mass(
    model: Backbone, task: Task, *, config: AttentionMass, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Read texts in segments, and yield the attention that each region and bucket of keys gets.

    Args:
        model: A trained model.
        task: The task, with prepared data and a memory.
        config: How much text is read.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: The model has no memory of segments, or the split is too short to fill it.
    """
    mixers = recurrent_mixers(model.stack)
    if not task.spec.memory or not isinstance(task, WindowedTask):
        raise Unsupported(
            "this task has no memory: choose language modelling with task.regime=memory and "
            "task.memory=N"
        )
    memory, window = (
        remembered_tokens(model.config, task, training=False),
        task.window(config.split),
    )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    by_layer: dict[int, list[Tensor]] = {layer: [] for layer in mixers}
    state: State = None
    with torch.inference_mode(), autocast(hardware), recorded_masses(mixers) as masses:
        for batch in task.batches(config.split, batch_size=config.batch_size, seed=0):
            count = len(by_layer[min(by_layer)])
            # The last segment of a split may be shorter than a window.
            if count == config.segments or batch.tokens.shape[2] != window:
                break
            so_far("reading", count, config.segments, "segment")
            moved = to_device(batch, device)
            if batch.reset is not None and bool(batch.reset.any()):
                state = model.initial_state(len(batch.tokens), memory)
            state = model.run(moved.tokens, None, state).state
            if len(masses) == len(mixers):  # the memories of all layers were full
                for layer, mass in masses.items():
                    by_layer[layer].append(mass.cpu())
            masses.clear()
    if not by_layer[min(by_layer)]:
        raise Unsupported(
            f"the {config.split} split is too short: each of {config.batch_size} texts in parallel "
            f"must fill a memory of {memory} tokens; lower runner.batch_size or task.memory"
        )
    masses_of = {str(layer): torch.cat(parts) for layer, parts in by_layer.items()}
    if len({mass.shape for mass in masses_of.values()}) == 1:  # layers with equal memories
        masses_of[ALL] = torch.stack(list(masses_of.values())).mean(0)
    for name, mass in masses_of.items():
        edges = regions(mass.shape[1], segment=window, memory=memory)
        yield from _mass_rows(mass, edges, name, config)


def regions(keys: int, *, segment: int, memory: int) -> Mapping[str, tuple[int, int]]:
    """Return the first key of each region and the key after its last one; skip empty regions.

    Args:
        keys: Number of keys in all regions.
        segment: Number of tokens of a segment, which are the last keys.
        memory: Greatest number of tokens of the memory before the segment.
    """
    compressed = max(0, keys - segment - memory)
    edges = (0, compressed, keys - segment, keys)
    return {
        name: (first, last)
        for name, first, last in zip(REGIONS, edges, edges[1:], strict=False)
        if last > first
    }


def _mass_rows(
    mass: Float[Tensor, "n s"],
    edges: Mapping[str, tuple[int, int]],
    layer: str,
    config: AttentionMass,
) -> Iterator[Measurement]:
    """Yield the mean attention of each bucket and region in a layer, and its standard error.

    `mass` is the mean attention of n sequences to s keys; `edges` is from `regions`.
    """
    labels = {"split": config.split, "layer": layer, "sequences": str(len(mass))}
    for region, (first, last) in edges.items():
        parts = np.array_split(np.arange(first, last), min(config.buckets, last - first))
        buckets = {str(number): keys for number, keys in enumerate(parts, 1)}
        for bucket, keys in {**buckets, ALL: np.arange(first, last)}.items():
            sums = mass[:, torch.from_numpy(keys)].sum(1)
            row_labels = {**labels, "region": region, "bucket": bucket, "keys": str(len(keys))}
            value = min(1.0, float(sums.mean()))  # a sum of weights may round above 1
            yield Measurement(metric="attention_mass", value=value, labels=row_labels)
            if len(sums) > 1:
                error = float(sums.std()) / math.sqrt(len(sums))
                yield Measurement(metric="attention_mass_error", value=error, labels=row_labels)

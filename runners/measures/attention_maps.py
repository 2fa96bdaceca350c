"""What the attention weights, the projections and the kernels of a trained model look like.

    locality      how far and how widely each head attends, and the average map of each layer
    spectrum      how few singular values make up most of an attention matrix
    projections   how few dimensions make up most of the key-query products of heads
    kernels       the kernels of convolutions
    similarity    which amino acids get similar attention, compared with BLOSUM62

The measures are defined in `lra.runners.measures.attention`; the page "What attention looks like"
of the documentation names the papers that use them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from typing import Any, ClassVar, cast

import torch

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.attention_weights import readable
from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import family
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.attention.amino_acids import AminoAcids
from lra.runners.measures.attention.kernels import Kernels
from lra.runners.measures.attention.locality import Locality
from lra.runners.measures.attention.reading import WeightReading, pass_batch
from lra.runners.measures.attention.spectrum import Spectrum, projection_rows
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement, Status
from lra.runners.runner import Passes, Work
from lra.runners.training.prefetch import first_of, to_device
from lra.tasks.proteins.task import Proteins
from lra.tasks.task import SPLITS, Task


class MapMeasure(StrEnum):
    """A property of attention that is measured."""

    locality = auto()
    spectrum = auto()
    projections = auto()
    kernels = auto()
    similarity = auto()


METRIC = {
    MapMeasure.locality: "attention_distance",
    MapMeasure.spectrum: "singular_value_share",
    MapMeasure.projections: "projection_energy",
    MapMeasure.kernels: "kernel_weight",
    MapMeasure.similarity: "substitution_correlation",
}
"""Metric of the row which says why a measure has no number."""
LACKING = {
    MapMeasure.projections: "the model has no layer with one linear map to queries and one to keys",
    MapMeasure.kernels: "the model has no layer with a convolution that normalises its kernels",
    MapMeasure.similarity: "the measure similarity compares amino acids, but task={task} has none; "
    "choose task=proteins or task=proteins_masked",
}
"""Why a measure has no number although weights can be read."""


@by_name
@dataclass(frozen=True, kw_only=True)
class AttentionMaps(TrainedRunner):
    """What is measured, and on how many examples."""

    outcome: ClassVar[str] = "attention_distance"

    measures: list[MapMeasure] = field(
        default_factory=lambda: [m for m in MapMeasure if m != MapMeasure.similarity]
    )
    split: str = "validation"
    examples: int = 32
    """How many examples are read: the first ones of the split."""
    batch_size: int = 4
    within: list[int] = field(default_factory=lambda: [1, 5, 15])
    """For locality: distances from a token within which its attention is summed."""
    map_cells: int = 32
    """For locality: the average map has at most this many squares along each side."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.measures or len(set(self.measures)) < len(self.measures):
            raise ValueError(
                f"measures: got {[str(m) for m in self.measures]}; wanted one or more of "
                f"{', '.join(MapMeasure)}, none of them twice"
            )
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")
        check_least(1, examples=self.examples, batch_size=self.batch_size, map_cells=self.map_cells)
        if len(set(self.within)) < len(self.within) or min(self.within, default=0) < 0:
            raise ValueError(
                f"within: got {self.within}; wanted different distances of 0 or more, for "
                "example [1, 5, 15]"
            )

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over the examples; reading weights takes about as long as a pass."""
        return [
            Passes(2 * self.examples / self.batch_size, self.batch_size, work.task.spec.max_length,
                   False)
        ]  # fmt: skip

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the rows of every measure, or a row with the reason why it has none."""
        model, origins = self.model_of(work)
        yield from origins
        yield from attention_maps(model, work.task, config=self, hardware=work.hardware)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the mean of each measure over layers and heads."""
        titles = {
            "attention_distance": "distance",
            "singular_value_share": "largest quarter of singular values",
            "projection_energy": "energy in the largest quarter of dimensions",
            "substitution_correlation": "correlation with the substitution matrix",
        }
        parts = []
        for metric, title in titles.items():
            values = [r.value for r in rows if r.metric == metric and r.value is not None]
            if values:
                parts.append(f"{title} {sum(values) / len(values):.3g}")
        return ", ".join(parts)


def attention_maps(
    model: Backbone, task: Task, *, config: AttentionMaps, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Read the weights of a trained model on examples, and yield the rows of each measure.

    Args:
        model: A trained model.
        task: The task, with prepared data.
        config: Which measures, and on how many examples.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: The stack has no layers, or the model has a memory of earlier windows.
    """
    if task.spec.memory:
        raise Unsupported(
            f"the model remembers {task.spec.memory} tokens before each window: to read attention "
            "maps, set task.regime=non_overlapping task.memory=0"
        )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    cores, reasons = readable(model.stack)
    mixers = {n: cast(Any, b).mixer for n, b in enumerate(cast(Any, model.stack).blocks)}
    readings, kernels = _choose_readings(config, model, task), Kernels()
    examples, read_layers = 0, set[int]()
    batches = task.batches(config.split, batch_size=config.batch_size, seed=0)
    with torch.no_grad(), autocast(hardware):
        for batch in first_of(batches, config.examples):
            so_far("reading", examples, config.examples, "example")
            record = pass_batch(model, cores if readings else {}, to_device(batch, device))
            examples += len(batch.tokens)
            read_layers |= record.weights.keys()
            for layer, weights in record.weights.items():
                for reading in readings.values():
                    reading.add(layer, weights, record.rows)
            for layer, (left, taps) in record.kernels.items():
                kernels.add(layer, left, taps, record.rows)
    for layer in cores.keys() - read_layers:
        reasons[layer] = (
            f"{family(cores[layer])} needs further inputs besides queries, keys and values, so lra "
            "cannot read its attention weights: choose another family"
        )
    sources: dict[MapMeasure, Callable[[], Iterator[Measurement]]] = {
        MapMeasure.projections: lambda: projection_rows(mixers),
        MapMeasure.kernels: kernels.measurements,
        **{measure: reading.measurements for measure, reading in readings.items() if read_layers},
    }
    for measure in config.measures:
        labels = {"split": config.split, "examples": str(examples), "measure": str(measure)}
        if measure in readings:
            yield from _explain_layers(measure, reasons, len(mixers), labels)
        count = 0
        try:
            for row in sources.get(measure, lambda: iter(()))():  # without a source: no row
                count += 1
                yield replace(row, labels={**row.labels, **labels})
        except Unsupported as error:
            yield _failure_row(measure, str(error), labels)
            continue
        if not count and measure not in readings:
            yield _failure_row(measure, LACKING[measure].format(task=task.spec.name), labels)


def _choose_readings(
    config: AttentionMaps, model: Backbone, task: Task
) -> dict[MapMeasure, WeightReading]:
    """Return the chosen measures of attention weights that the task allows."""
    longest = model.facts.max_length + model.has_cls
    available: dict[MapMeasure, WeightReading] = {
        MapMeasure.locality: Locality(config.within, config.map_cells, longest),
        MapMeasure.spectrum: Spectrum(),
    }
    if isinstance(task, Proteins):
        available[MapMeasure.similarity] = AminoAcids()
    return {measure: available[measure] for measure in config.measures if measure in available}


def _explain_layers(
    measure: MapMeasure, reasons: dict[int, str], layers: int, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield a row for each layer in `reasons`, or one row if all layers have the same reason."""
    if len(reasons) == layers and len(set(reasons.values())) == 1:
        yield _failure_row(measure, reasons[0], labels)
        return
    for layer, reason in sorted(reasons.items()):
        yield _failure_row(measure, reason, labels | {"layer": str(layer)})


def _failure_row(measure: MapMeasure, reason: str, labels: dict[str, str]) -> Measurement:
    return Measurement(
        metric=METRIC[measure], status=Status.unsupported, reason=reason, labels=labels
    )

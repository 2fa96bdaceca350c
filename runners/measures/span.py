"""How far away a trained model reads, in tokens: by attention, by gradient, by hiding tokens.

    attention   sum_j A[q, j] |q - j|                          A: weights of one head of one layer
    gradient    sum_j g[q, j] |q - j| / sum_j g[q, j]          g: norm of d (top logit) / d x_j
    occlusion   the least s for which answers stay when all tokens farther than s are replaced

q and j are positions in the input of the stack. If it has a CLS vector, that is position 0, and the
tokens follow from position 1.
The page "Beyond the training length" of the documentation has the definitions in full.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.attention_weights import CoreCall, readable, recorded_calls, weights
from lra.models.backbone.choices import Head
from lra.models.backbone.heads import READ_FIRST, Pooling
from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import family
from lra.models.mixer import Flow, Layout, Unsupported
from lra.models.multi_head import Core
from lra.runners.isolation.progress import phase
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.attention.occlusion import (
    QueriedBatch,
    counted_answers,
    doublings,
    draw_queries,
    hidden_answers,
    least,
    top_classes,
)
from lra.runners.records import Measurement, Status
from lra.runners.runner import OWN, Runner, Work
from lra.runners.training.prefetch import first_of
from lra.tasks.task import SPLITS, Task

ALL = "all"
"""Value of the labels `layer` and `head` in rows about all layers or heads."""


class SpanMeasure(StrEnum):
    """How a span is measured."""

    attention = auto()
    gradient = auto()
    occlusion = auto()


@by_name
@dataclass(frozen=True, kw_only=True)
class Span(Runner):
    """Which spans are measured, and on how many examples."""

    outcome: ClassVar[str] = "span"

    measures: list[SpanMeasure] = field(default_factory=lambda: list(SpanMeasure))
    split: str = "validation"
    examples: int = 64
    """How many examples are read: the first ones of the split."""
    queries: int = 8
    """How many positions of each example gradient and occlusion are measured at."""
    keeps: float = 0.95
    """For occlusion: the fraction of answers that must stay unchanged."""
    batch_size: int = 16

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if not self.measures or len(set(self.measures)) < len(self.measures):
            raise ValueError(
                f"measures: got {[str(m) for m in self.measures]}; wanted one or more of "
                f"{', '.join(SpanMeasure)}, none of them twice"
            )
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")
        check_least(1, examples=self.examples, queries=self.queries, batch_size=self.batch_size)
        if not 0 < self.keeps <= 1:
            raise ValueError(f"keeps must be above 0 and at most 1: got {self.keeps}")

    def starts_from(self) -> list[str]:
        """Return `OWN`, because a sweep trains the model of the run first."""
        return [OWN]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the spans of the trained model."""
        model = work.trained()
        return span(model, work.task, config=self, hardware=work.hardware, seed=work.seed)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the span over all heads by each measure, as in `attention 12.3, … tokens`."""
        spans = [row for row in rows if row.metric == "span" and row.labels.get("head") == ALL]
        return ", ".join(f"{r.labels['measure']} {r.value:.1f}" for r in spans) + " tokens"


class Mean:
    """A mean to which values can be added, and the number of its values."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, values: Tensor) -> None:
        """Add every number in the tensor `values`."""
        self.total += float(values.double().sum())
        self.count += values.numel()

    @property
    def value(self) -> float:
        """Return the mean. Raises ZeroDivisionError if no value was added."""
        return self.total / self.count


def span(
    model: Backbone, task: Task, *, config: Span, hardware: HardwareProfile, seed: int
) -> Iterator[Measurement]:
    """Measure the spans of a trained model, and yield their rows.

    Args:
        model: A trained model.
        task: The task, with prepared data.
        config: Which measures, and on how many examples.
        hardware: The device, and the number format of computations.
        seed: Seed of the queried positions and of the tokens that replace hidden ones.

    Raises:
        Unsupported: The model has a memory of tokens before the window.
    """
    if task.spec.memory:
        raise Unsupported(
            f"the model remembers {task.spec.memory} tokens before the window, so its span is "
            "undefined: to measure spans, set task.regime=non_overlapping task.memory=0"
        )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    generator = torch.Generator().manual_seed(seed)
    all_batches = task.batches(config.split, batch_size=config.batch_size, seed=0)
    phase("choosing queries")
    queried = [
        draw_queries(model, batch, config.queries, generator, device)
        for batch in first_of(all_batches, config.examples)
    ]
    examples = sum(len(batch.tokens) for batch in queried)
    labels = {"split": config.split, "examples": str(examples)}
    for number, measure in enumerate(config.measures, 1):
        phase(f"{measure} ({number} of {len(config.measures)})")
        row_labels = {"measure": str(measure), "layer": ALL, "head": ALL, **labels}
        try:
            with autocast(hardware):
                yield from _MEASURES[measure](model, queried, config, row_labels)
        except Unsupported as error:
            yield Measurement(
                metric="span", status=Status.unsupported, reason=str(error), labels=row_labels
            )


def _measure_attention_span(
    model: Backbone, queried: list[QueriedBatch], config: Span, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the attention span of each head of each layer, then the mean over all heads.

    For layers without attention weights, a row states the reason instead. If no layer has weights
    for the same reason, there is one row. The mean is yielded only if every layer has a span.
    """
    del config
    cores, reasons = readable(model.stack)
    means: dict[tuple[int, int], Mean] = {}
    for batch in queried if cores else ():
        with torch.no_grad(), recorded_calls(cores) as calls:
            model.run(batch.tokens, batch.keep, None)
        for layer, call in calls.items():
            with torch.no_grad():
                spans = distances(cast(Core, cores[layer]), call)
            for head in range(spans.shape[1]):
                means.setdefault((layer, head), Mean()).add(spans[:, head])
    for layer, core in cores.items():
        if (layer, 0) not in means:
            reasons[layer] = (
                f"{family(core)} needs further inputs besides queries, keys and values, so lra "
                "cannot read its attention weights: choose another family"
            )
    for reason in dict.fromkeys(reasons.values()):
        layers = [str(layer) for layer, why in reasons.items() if why == reason]
        all_layers = len(layers) == len(model.traits)
        # One row without a layer stands for all of them.
        for layer_label in [{}] if all_layers else [{"layer": layer} for layer in layers]:
            row_labels = labels | layer_label
            yield Measurement(
                metric="span", status=Status.unsupported, reason=reason, labels=row_labels
            )
    for (layer, head), mean in means.items():
        row_labels = labels | {"layer": str(layer), "head": str(head)}
        yield Measurement(metric="span", value=mean.value, labels=row_labels)
    if means and not reasons:
        over_heads = sum(mean.value for mean in means.values()) / len(means)
        yield Measurement(metric="span", value=over_heads, labels=labels)


def distances(core: Core, call: CoreCall) -> Float[Tensor, "b h"]:
    """Return the mean over queries q of sum_j A[q, j] |q - j|, for each example and head.

    Args:
        core: The attention function; A are its weights.
        call: The recorded arguments of one call. Padding does not count as a query.
    """
    q, layout = call.q, call.layout
    position = torch.arange(q.shape[2], device=q.device)
    total = torch.zeros(q.shape[:3], device=q.device)
    for first, part in weights(core, call):
        keys = position[first : first + part.shape[-1]]
        total += (part.float() * (position[:, None] - keys).abs()).sum(-1)
    if layout.keep is None:
        return total.mean(-1)
    real = layout.keep[:, None].float()
    return (total * real).sum(-1) / real.sum(-1).clamp(min=1.0)


def _measure_gradient_span(
    model: Backbone, queried: list[QueriedBatch], config: Span, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the mean gradient span over all queried positions."""
    del config
    mean = Mean()
    for batch in queried:
        mean.add(gradient_spans(model, batch))
    if not mean.count:
        raise Unsupported("every gradient is 0, so the gradient span of this model is undefined")
    row_labels = labels | {"answers": str(mean.count)}
    yield Measurement(metric="span", value=mean.value, labels=row_labels)


def gradient_spans(model: Backbone, queried: QueriedBatch) -> Float[Tensor, " m"]:
    """Return the gradient span of each queried position q.

    With the input x [r, l, d] and the output y [r, l, d] of the stack, it is
    sum_j g[q, j] |q - j| / sum_j g[q, j], where g[q, j] is the norm of the gradient of the largest
    logit that reaches x[:, j] through y[:, q]: only a part of its gradient if outputs are pooled.

    Args:
        model: A trained model.
        queried: A batch and its queried positions; m of them count and have a gradient.

    Raises:
        Unsupported: The output of the stack has another length than its input.
    """
    x, y = _run_recording_stack(model, queried)
    if y.shape[1] != x.shape[1]:
        raise Unsupported(
            f"the stack of the model has {x.shape[1]} inputs and {y.shape[1]} outputs, so an "
            "answer has no position from which lra could measure distances"
        )
    row = torch.arange(len(y), device=y.device)[:, None]
    if model.per_token:
        outputs = y[row, queried.queries]
        top = cast(Any, model.head)(outputs).amax(-1)
        slope = torch.autograd.grad(top.sum(), outputs, retain_graph=True)[0]
    else:
        top = model.classify(y, queried.keep, queried.tokens.shape[1]).amax(-1)
        slope = torch.autograd.grad(top.sum(), y, retain_graph=True)[0][row, queried.queries]
    position = torch.arange(x.shape[1], device=x.device)
    parts = []
    for number in range(queried.queries.shape[1]):
        query = queried.queries[:, number]
        # slope is d logit / d y at the query, so this sum has the gradient of the logit through it
        answer = (y[row[:, 0], query] * slope[:, number]).sum()
        norms = torch.autograd.grad(answer, x, retain_graph=True)[0].double().norm(dim=-1)
        total = norms.sum(1)
        spans = (norms * (position - query[:, None]).abs()).sum(1) / total
        parts.append(spans[queried.counts[:, number] & (total > 0)])
    return torch.cat(parts)


def _run_recording_stack(
    model: Backbone, queried: QueriedBatch
) -> tuple[Float[Tensor, "r l d"], Float[Tensor, "r m d"]]:
    """Run the model; return the input and the output of its stack.

    The input is a leaf of the autograd graph, so gradients with respect to it can be taken.
    """
    captured: dict[str, Tensor] = {}

    def replace_input(_: torch.nn.Module, arguments: tuple[Flow, Layout]) -> tuple[Flow, Layout]:
        flow, layout = arguments
        captured["x"] = flow.x.detach().requires_grad_()
        return flow._replace(x=captured["x"]), layout

    handle = model.stack.register_forward_pre_hook(replace_input)
    try:
        flow = model.run(queried.tokens, queried.keep, None)
    finally:
        handle.remove()
    return captured["x"], flow.x


def _measure_occlusion_span(
    model: Backbone, queried: list[QueriedBatch], config: Span, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the fraction of unchanged answers for each tested distance, and the occlusion span.

    For a distance s, all tokens farther than s from the queried position are replaced. The span is
    the least s for which at least the fraction `config.keeps` of all answers stays unchanged.
    """
    if model.facts.head == Head.regression:
        raise Unsupported(
            "occlusion counts answers that stay the same class, but this task asks for a real "
            "number; choose runner.measures=[gradient] or another task"
        )
    if not model.per_token and model.config.pooling not in {*READ_FIRST, Pooling.last}:
        raise Unsupported(
            f"pooling={model.config.pooling} reads every position, so an answer has no position "
            "from which lra could measure distances; choose model.backbone.pooling=cls, last or "
            "first"
        )
    with torch.no_grad():
        full_answers = [top_classes(model, batch) for batch in queried]

    def unchanged_share(distance: int) -> float:
        mean = Mean()
        with torch.no_grad():
            for batch, full in zip(queried, full_answers, strict=True):
                same = hidden_answers(model, batch, distance) == full
                mean.add(same[counted_answers(model, batch)])
        return mean.value

    count = sum(int(counted_answers(model, batch).sum()) for batch in queried)
    row_labels = labels | {"answers": str(count)}
    # The distance between the first and the last position of the stack.
    longest = max(batch.tokens.shape[2] for batch in queried) - 1 + model.has_cls
    shares: dict[int, float] = {}
    for distance in doublings(longest):
        shares[distance] = unchanged_share(distance)
        yield Measurement(
            metric="occlusion_agreement",
            value=shares[distance],
            labels=row_labels | {"within": str(distance)},
        )
    span_tokens = least(shares, unchanged_share, config.keeps)
    row_labels |= {"keeps": f"{config.keeps:g}"}
    yield Measurement(metric="span", value=float(span_tokens), labels=row_labels)


_MEASURES = {
    SpanMeasure.attention: _measure_attention_span,
    SpanMeasure.gradient: _measure_gradient_span,
    SpanMeasure.occlusion: _measure_occlusion_span,
}

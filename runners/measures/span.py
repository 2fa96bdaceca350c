"""How far back a trained model reads, in tokens: by attention, by gradient, by hiding tokens.

    attention   sum_j A[q, j] |q - j|                          A: weights of one head of one layer
    gradient    sum_j g[q, j] |q - j| / sum_j g[q, j]          g: norm of d (top logit) / d x_j
    occlusion   the least s for which answers stay when all tokens farther than s are replaced

Places are those of the stack's input, where a CLS vector stands at 0 and shifts the tokens by one.
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
    """Examples: the first ones of the split."""
    queries: int = 8
    """Positions of each example at which gradient and occlusion are measured."""
    keeps: float = 0.95
    """Occlusion: fraction of the answers that must stay unchanged."""
    batch_size: int = 16

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        if not self.measures or len(set(self.measures)) < len(self.measures):
            raise ValueError(
                f"measures: got {[str(m) for m in self.measures]}; wanted one or more of "
                f"{', '.join(SpanMeasure)}, each named once"
            )
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")
        check_least(1, examples=self.examples, queries=self.queries, batch_size=self.batch_size)
        if not 0 < self.keeps <= 1:
            raise ValueError(f"keeps are fractions above 0 and at most 1: got {self.keeps}")

    def starts_from(self) -> list[str]:
        """Return the training that must exist: that of the run's model."""
        return [OWN]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the spans of the trained model."""
        model = work.trained()
        return span(model, work.task, config=self, hardware=work.hardware, seed=work.seed)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the span of all heads by each measure."""
        spans = [row for row in rows if row.metric == "span" and row.labels.get("head") == ALL]
        return ", ".join(f"{r.labels['measure']} {r.value:.1f}" for r in spans) + " tokens"


class Mean:
    """A running mean, with the number of its values."""

    def __init__(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, values: Tensor) -> None:
        """Add values."""
        self.total += float(values.double().sum())
        self.count += values.numel()

    @property
    def value(self) -> float:
        """Return the mean. Raises ZeroDivisionError if it is empty."""
        return self.total / self.count


def span(
    model: Backbone, task: Task, *, config: Span, hardware: HardwareProfile, seed: int
) -> Iterator[Measurement]:
    """Measure the spans of a trained model, and yield rows.

    Args:
        model: Trained.
        task: Prepared.
        config: What is measured.
        hardware: Where, and how precisely.
        seed: Of the positions that are queried and of what replaces tokens.

    Raises:
        Unsupported: A state is carried from window to window, so the model reads tokens outside the
            window.
    """
    if task.spec.memory:
        raise Unsupported(
            f"with a memory of {task.spec.memory} tokens, answers depend on tokens before the "
            "window: to measure spans, set task.regime=non_overlapping, task.memory=0"
        )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    generator = torch.Generator().manual_seed(seed)
    whole = task.batches(config.split, batch_size=config.batch_size, seed=0)
    phase("choosing queries")
    queried = [
        draw_queries(model, batch, config.queries, generator, device)
        for batch in first_of(whole, config.examples)
    ]
    examples = sum(len(part.tokens) for part in queried)
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


def _attention(
    model: Backbone, queried: list[QueriedBatch], config: Span, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the attention span of each head of each layer, then their mean.

    Layers without attention weights yield a row with the reason instead: one row if all layers have
    the same reason. The mean is yielded only if every layer has a span.
    """
    del config
    cores, reasons = readable(model.stack)
    means: dict[tuple[int, int], Mean] = {}
    for part in queried if cores else ():
        with torch.no_grad(), recorded_calls(cores) as calls:
            model.run(part.tokens, part.keep, None)
        for layer, call in calls.items():
            with torch.no_grad():
                spans = distances(cast(Core, cores[layer]), call)
            for head in range(spans.shape[1]):
                means.setdefault((layer, head), Mean()).add(spans[:, head])
    for layer, core in cores.items():
        if (layer, 0) not in means:
            reasons[layer] = (
                f"{family(core)} needs more inputs than queries, keys and values, so its weights "
                "cannot be read by passing unit vectors as values: choose another family"
            )
    for reason in dict.fromkeys(reasons.values()):
        layers = [str(layer) for layer, why in reasons.items() if why == reason]
        whole = len(layers) == len(model.traits)
        for place in [{}] if whole else [{"layer": layer} for layer in layers]:
            yield Measurement(
                metric="span", status=Status.unsupported, reason=reason, labels=labels | place
            )
    for (layer, head), mean in means.items():
        row_labels = labels | {"layer": str(layer), "head": str(head)}
        yield Measurement(metric="span", value=mean.value, labels=row_labels)
    if means and not reasons:
        over_heads = sum(mean.value for mean in means.values()) / len(means)
        yield Measurement(metric="span", value=over_heads, labels=labels)


def distances(core: Core, call: CoreCall) -> Float[Tensor, "b h"]:
    """Return the mean over queries of sum_j A[q, j] |q - j|, by example and head.

    Args:
        core: The attention function, which has the weights A.
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


def _gradient(
    model: Backbone, queried: list[QueriedBatch], config: Span, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the mean over positions of their span by gradient."""
    del config
    mean = Mean()
    for part in queried:
        mean.add(gradient_spans(model, part))
    if not mean.count:
        raise Unsupported("every gradient is zero, so the span of this model is undefined")
    row_labels = labels | {"answers": str(mean.count)}
    yield Measurement(metric="span", value=mean.value, labels=row_labels)


def gradient_spans(model: Backbone, queried: QueriedBatch) -> Float[Tensor, " m"]:
    """Return the gradient span of each counted position that has a gradient.

    Only the gradient of the top logit that reaches x_j through output q counts. That is all of it
    if the answer is read at one position, and a part of it if outputs are pooled.

    Args:
        model: Trained.
        queried: A batch and its queried positions; m of them count.
    """
    x, y = _through(model, queried)
    if y.shape[1] != x.shape[1]:
        raise Unsupported(
            f"the model reads {x.shape[1]} tokens and returns {y.shape[1]}, so an answer has no "
            "position from which distances could be measured"
        )
    row = torch.arange(len(y), device=y.device)[:, None]
    if model.per_token:
        read = y[row, queried.queries]
        top = cast(Any, model.head)(read).amax(-1)
        slope = torch.autograd.grad(top.sum(), read, retain_graph=True)[0]
    else:
        top = model.classify(y, queried.keep, queried.tokens.shape[1]).amax(-1)
        slope = torch.autograd.grad(top.sum(), y, retain_graph=True)[0][row, queried.queries]
    position = torch.arange(x.shape[1], device=x.device)
    parts = []
    for number in range(queried.queries.shape[1]):
        query = queried.queries[:, number]
        answer = (y[row[:, 0], query] * slope[:, number]).sum()
        norms = torch.autograd.grad(answer, x, retain_graph=True)[0].double().norm(dim=-1)
        total = norms.sum(1)
        spans = (norms * (position - query[:, None]).abs()).sum(1) / total
        parts.append(spans[queried.counts[:, number] & (total > 0)])
    return torch.cat(parts)


def _through(
    model: Backbone, queried: QueriedBatch
) -> tuple[Float[Tensor, "r l d"], Float[Tensor, "r m d"]]:
    """Run the model; return the stack's input, a leaf that takes gradients, and its output."""
    captured: dict[str, Tensor] = {}

    def before(_: torch.nn.Module, arguments: tuple[Flow, Layout]) -> tuple[Flow, Layout]:
        flow, layout = arguments
        captured["x"] = flow.x.detach().requires_grad_()
        return flow._replace(x=captured["x"]), layout

    handle = model.stack.register_forward_pre_hook(before)
    try:
        flow = model.run(queried.tokens, queried.keep, None)
    finally:
        handle.remove()
    return captured["x"], flow.x


def _occlusion(
    model: Backbone, queried: list[QueriedBatch], config: Span, labels: dict[str, str]
) -> Iterator[Measurement]:
    """Yield the fraction of unchanged answers at each distance, and the occlusion span.

    At a distance, all tokens farther away than that are replaced. The span is the least distance at
    which the fraction is at least `config.keeps`.
    """
    if not model.per_token and model.config.pooling not in {*READ_FIRST, Pooling.last}:
        raise Unsupported(
            f"pooling={model.config.pooling} reads every position, so an answer has no position "
            "from which distances could be measured; choose model.backbone.pooling=cls, last or "
            "first"
        )
    with torch.no_grad():
        full = [top_classes(model, part) for part in queried]

    def unchanged_share(distance: int) -> float:
        mean = Mean()
        with torch.no_grad():
            for part, unhidden in zip(queried, full, strict=True):
                same = hidden_answers(model, part, distance) == unhidden
                mean.add(same[counted_answers(model, part)])
        return mean.value

    count = sum(int(counted_answers(model, part).sum()) for part in queried)
    row_labels = labels | {"answers": str(count)}
    longest = max(part.tokens.shape[-1] for part in queried) - 1 + model.has_cls
    shares: dict[int, float] = {}
    for distance in doublings(longest):
        shares[distance] = unchanged_share(distance)
        yield Measurement(
            metric="occlusion_agreement",
            value=shares[distance],
            labels=row_labels | {"within": str(distance)},
        )
    enough = least(shares, unchanged_share, config.keeps)
    yield Measurement(
        metric="span", value=float(enough), labels=row_labels | {"keeps": f"{config.keeps:g}"}
    )


_MEASURES = {
    SpanMeasure.attention: _attention,
    SpanMeasure.gradient: _gradient,
    SpanMeasure.occlusion: _occlusion,
}

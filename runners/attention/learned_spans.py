"""Spans that heads have learned, and the work that they imply."""

from collections.abc import Iterator
from typing import Any, cast

from models.backbone.model import Backbone
from models.mixer import LearnsSpans
from runners.records import Measurement

ALL = "all"


def learned_spans(model: Backbone) -> Iterator[Measurement]:
    """Yield the span of each head of each layer, their mean, and a token's multiply-adds.

    These are 4 d^2 + 2 d f + 2 s d for each layer of width d with a network of width f, s its mean
    span, as arXiv:1905.07799 counts them: without positions, and without the model's head. Nothing
    is yielded for a model with layers that learn no spans.
    """
    blocks: list[Any] = [*getattr(model.stack, "blocks", ())]
    if not blocks or not all(isinstance(block.mixer, LearnsSpans) for block in blocks):
        return
    width, operations, means = model.config.width, 0.0, []
    labels = {"measure": "learned", "layer": ALL, "head": ALL}
    for layer, block in enumerate(blocks):
        spans: list[float] = cast(LearnsSpans, block.mixer).learned_spans().tolist()
        for head, value in enumerate(spans):
            place = {"layer": str(layer), "head": str(head)}
            yield Measurement(metric="span", value=value, labels=labels | place)
        means.append(sum(spans) / len(spans))
        network = 0 if block.network is None else 2 * width * model.config.feed_forward_width
        operations += 4 * width**2 + network + 2 * means[-1] * width
    yield Measurement(metric="span", value=sum(means) / len(means), labels=labels)
    yield Measurement(metric="span_operations", value=operations, labels=labels)

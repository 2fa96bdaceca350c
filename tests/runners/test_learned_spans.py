"""Learned spans are read from the weights, with the multiply-adds that they imply."""

from functools import partial

import torch

from models.backbone.model import Backbone, BackboneConfig, FeedForward, Head, TaskFacts
from models.families.adaptive_span import AdaptiveSpan
from models.families.softmax import SoftmaxAttention
from models.mixer import Positions
from runners.attention.learned_spans import learned_spans


def model_of(*mixers):
    config = BackboneConfig(
        width=32, heads=2, depth=2, feed_forward=FeedForward.relu, feed_forward_width=48,
        positions=Positions.none,
    )  # fmt: skip
    facts = TaskFacts(head=Head.language_modelling, vocabulary=21, classes=21, max_length=24)
    return Backbone(config, facts, [*mixers], seed=0)


def test_spans_of_heads_their_mean_and_the_work() -> None:
    model = model_of(partial(AdaptiveSpan, span=20, ramp=4))
    for block, values in zip(model.blocks, ([0.0, 0.11], [0.5, 1.0]), strict=True):
        with torch.no_grad():
            block.mixer.core.spans.copy_(torch.tensor(values))
    rows = [*learned_spans(model)]
    heads = {
        (row.labels["layer"], row.labels["head"]): row.value for row in rows if row.metric == "span"
    }
    assert heads == {
        ("0", "0"): 4.0, ("0", "1"): 7.0, ("1", "0"): 14.0, ("1", "1"): 20.0,
        ("all", "all"): 45.0 / 4,
    }  # fmt: skip
    assert rows[-1].metric == "span_operations"
    assert rows[-1].value == sum(4 * 32**2 + 2 * 32 * 48 + 2 * 32 * s for s in (5.5, 17.0))


def test_of_other_layers_nothing_is_said() -> None:
    assert [*learned_spans(model_of(partial(AdaptiveSpan, span=20), SoftmaxAttention))] == []

"""What the frame's options make of a block and of the stack, against the formulas written out."""

import dataclasses
import re

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.backbone.assembly import idle_for_task
from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    FeedForward,
    Head,
    Residual,
    TaskFacts,
)
from lra.models.families.softmax import SoftmaxAttention
from lra.models.linear_map import projection
from lra.models.mixer import Flow, Layout

FACTS = TaskFacts(head=Head.language_modelling, vocabulary=7, classes=0, max_length=9)


def build(**options: object) -> Backbone:
    config = BackboneConfig(**{"width": 8, "feed_forward_width": 12, "depth": 2} | options)
    model = Backbone(config, FACTS, [SoftmaxAttention], seed=0).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator).double() / 2)
    return model


def norm(x: Tensor, part: torch.nn.Module, epsilon: float) -> Tensor:
    if not isinstance(part, torch.nn.LayerNorm):
        return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * part.weight
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + epsilon).sqrt() * part.weight + part.bias


@pytest.mark.parametrize("kind", [FeedForward.gelu, FeedForward.gelu_tanh, FeedForward.none])
@pytest.mark.parametrize("residual", [Residual.pre_norm, Residual.post_norm])
@pytest.mark.parametrize(
    ("norm_kind", "epsilon"), [("layer", 1e-12), ("layer", 0.3), ("rms", 0.3), ("scale", 0.3)]
)
def test_a_stack_is_its_formula(
    kind: FeedForward, residual: Residual, norm_kind: str, epsilon: float
) -> None:
    stack = build(feed_forward=kind, residual=residual, norm=norm_kind, norm_epsilon=epsilon).stack
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    y = x
    after = residual is Residual.post_norm
    if after:
        y = norm(y, stack.norm, epsilon)
    for block in stack.blocks:
        seen = y if after else norm(y, block.mixer_norm, epsilon)
        y = y + block.mixer(seen, Layout())
        y = norm(y, block.mixer_norm, epsilon) if after else y
        if kind is not FeedForward.none:
            first, _, _, second = block.network
            hidden = first(y if after else norm(y, block.network_norm, epsilon))
            y = y + second(F.gelu(hidden, approximate="tanh" if "tanh" in kind else "none"))
            y = norm(y, block.network_norm, epsilon) if after else y
    y = y if after else norm(y, stack.norm, epsilon)
    torch.testing.assert_close(stack(Flow(x), Layout()).x, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_hidden_layers": 3}, "must be 0, 1 or 2: got 3"),
        ({"head_hidden_layers": -1}, "must be 0, 1 or 2: got -1"),
        (
            {"head_hidden_layers": 2, "head_hidden_width": 1},
            "got a first layer of width 1; set head",
        ),
        (
            {"head_hidden_layers": 2, "feed_forward_width": 1},
            "got a first layer of width 1; set head_hidden",
        ),
    ],
)
def test_a_classifier_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**options)


def test_an_epsilon_is_positive() -> None:
    with pytest.raises(ValueError, match=r"norm_epsilon, .* must be positive: got 0"):
        BackboneConfig(norm_epsilon=0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"feed_forward": FeedForward.none, "feed_forward_bias": False},
            "feed_forward_bias has no effect under feed_forward=none: got false; leave it "
            "at true, or choose feed_forward=gelu or gelu_tanh or relu or silu",
        ),
        ({"feed_forward": FeedForward.none, "feed_forward_chunks": 2}, "leave it at 1"),
        ({"reversible_output": "concat"}, "under residual=pre_norm: got concat; leave it at mean"),
        (
            {"stack_norm": False, "residual": "reversible"},
            "stack_norm has no effect under residual=reversible: got false; leave it at true",
        ),
        ({"axial_shape": [4, 4]}, r"under positions=learned: got \[4, 4\]; leave it at \[\]"),
        ({"axial_widths": [4, 4]}, "axial_widths has no effect"),
        ({"softmax_cutoffs": [4]}, "without softmax=adaptive or embedding=adaptive"),
        ({"softmax_shrink": 2.0}, "or embedding=adaptive: got 2.0; leave it at 4.0"),
        ({"cls_keep": "first_token", "pooling": "mean"}, "under pooling=mean: got first_token"),
        ({"cls_keep": "first_token", "padding": "attended"}, "or choose padding=masked"),
        ({"head_hidden_width": 9, "head_hidden_layers": 0}, "head_hidden_layers=1 or 2"),
    ],
)
def test_an_option_without_anything_to_act_on_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**options)


ONE_ANSWER, EVERY_TOKEN = Head.classification, Head.language_modelling


@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        (EVERY_TOKEN, {"pooling": "mean"}, "pooling .*one answer.*: got mean; leave it at cls"),
        (EVERY_TOKEN, {"head_hidden_width": 9}, "head_hidden_width .*: got 9; leave it at null"),
        (EVERY_TOKEN, {"head_hidden_layers": 2}, "head_hidden_layers .*: got 2; leave it at 1"),
        (EVERY_TOKEN, {"cls_keep": "first_token"}, "cls_keep .*: got first_token; leave it at"),
        (ONE_ANSWER, {"interaction": "concat"}, "without a task of pairs.*: got concat"),
        (EVERY_TOKEN, {"interaction": "concat"}, "without a task of pairs.*: got concat"),
        (ONE_ANSWER, {"tied_embeddings": False}, "answers with tokens, .*: got false; leave it at"),
        (ONE_ANSWER, {"softmax": "adaptive", "tied_embeddings": False}, "got adaptive"),
    ],
)
def test_an_option_that_the_task_never_reads_is_refused(head, options, message):
    facts = dataclasses.replace(FACTS, head=head)
    assert not idle_for_task(BackboneConfig(), facts)
    found = idle_for_task(BackboneConfig(**options), facts)
    assert any(re.search(message, sentence) for sentence in found.values())


def test_a_map_between_widths_starts_from_the_law_of_xavier():
    layer = projection(6, 500)
    limit = (6 / (6 + 500)) ** 0.5
    assert 0.99 * limit < layer.weight.abs().max() <= limit
    assert not layer.bias.any()

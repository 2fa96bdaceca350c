"""A whole model whose sequences are shared by ranks: answers and gradients of one process."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, Head, Pooling, TaskFacts
from lra.models.context import Context
from lra.models.contract.context import Threads, among_threads
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.light_conv import LightConv
from lra.models.families.reformer import Reformer
from lra.models.families.sdpa import SDPA
from lra.models.mixer import Layout, Unsupported
from tests.models.backbone.small_backbones import CONFIG, KEEP, LENGTH, VOCABULARY, tokens

TARGETS = torch.arange(3) % 5
DOCUMENT = torch.tensor(
    [[0] * 3 + [1] * 6 + [2] * 3, [0] * 12, [0, 1, 1, 2, 2, 2, 2, 2, 2, 2, 3, 3]]
)


def built(mixer: Any, head: Head, masks: frozenset[str] = frozenset(), **changes: Any) -> Backbone:
    facts = TaskFacts(
        head=head, vocabulary=VOCABULARY, classes=5, max_length=LENGTH, padded=True, masks=masks
    )
    model = Backbone(dataclasses.replace(CONFIG, **changes), facts, [mixer], seed=0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return model


def judged(model: Backbone, given: list[Tensor], layout: Layout, share: float) -> list[Tensor]:
    """Return losses, penalties times `share`, and the gradients of their sum."""
    batch, target, keep = given
    outcome = model(batch, target, keep, layout=layout)
    nll = outcome.nll if outcome.nll.dim() > 1 else outcome.nll * share
    penalty = sum((each * share for each in outcome.penalties.values()), torch.zeros(()))
    learned = [*model.parameters()]
    found = torch.autograd.grad(nll.sum() + penalty, learned, allow_unused=True)
    gradients = [
        torch.zeros_like(a) if b is None else b for a, b in zip(learned, found, strict=True)
    ]
    return [outcome.nll.detach(), penalty.detach(), *gradients]


def compare(model: Backbone, ranks: int, document: Tensor | None = None) -> None:
    token_head = model.per_token
    batch = tokens(2 if model.facts.head == Head.pair else 1)
    target = batch[:, 0] if token_head else TARGETS
    keep = None if token_head else KEEP[:, None].expand_as(batch)
    whole = judged(model, [batch, target, keep], Layout(document=document), 1.0)

    def on_rank(transport: Threads) -> list[Tensor]:
        context = Context.of(transport, LENGTH)
        part = [
            context.part(batch, 2),
            context.part(target) if token_head else target,
            None if keep is None else context.part(keep, 2),
        ]
        here = None if document is None else context.part(document)
        return judged(model, part, Layout(document=here, context=context), 1 / ranks)

    parts = [list(each) for each in zip(*among_threads(ranks, on_rank), strict=True)]
    nll = torch.cat(parts[0], 1) if token_head else parts[0][-1]
    torch.testing.assert_close(nll, whole[0], rtol=1e-12, atol=1e-12)
    for seen, wanted in zip(parts[1:], whole[1:], strict=True):
        torch.testing.assert_close(torch.stack(seen).sum(0), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("pooling", [*Pooling])
@pytest.mark.parametrize("positions", ["learned", "axial"])
def test_a_classifier_pools_over_ranks(pooling, positions):
    compare(built(SDPA, Head.classification, pooling=pooling, positions=positions), 3)


def test_both_towers_of_a_pair_are_cut():
    compare(built(SDPA, Head.pair, pooling="mean", positions="sinusoidal"), 2)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "rotary"},
        {"positions": "learned", "activation_checkpointing": True, "residual": "post_norm"},
        {"positions": "sinusoidal", "tied_embeddings": False},
    ],
    ids=["rotary", "checkpointing", "untied"],
)
def test_a_language_model_judges_its_part(options):
    compare(built(SDPA, Head.language_modelling, **options), 3)


def test_penalties_of_parameters_count_once():
    compare(built(AdaptiveSpan, Head.language_modelling, positions="none"), 2)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_documents_cross_the_border_of_parts(positions):
    masks = frozenset({"document"})
    compare(built(SDPA, Head.language_modelling, masks, positions=positions), 3, DOCUMENT)


@pytest.mark.parametrize(
    ("mixer", "options", "says"),
    [
        (Reformer, {}, r"Reformer \(layer 0\) cannot share sequences .* set hardware.context=1"),
        (
            LightConv,
            {"residual": "reversible"},
            "under residual=reversible: got hardware.context=2",
        ),
        (LightConv, {"word_dropout": 0.1}, "under word_dropout=0.1"),
    ],
    ids=["family", "reversible", "words"],
)
def test_what_needs_whole_sequences_is_refused(mixer, options, says):
    facts = TaskFacts(head=Head.language_modelling, vocabulary=11, classes=1, max_length=LENGTH)
    model = Backbone(dataclasses.replace(CONFIG, **options), facts, [mixer], seed=0)
    context = Context.of(Threads(0, [[], []]), LENGTH)
    batch = context.part(tokens(), 2)
    with pytest.raises(Unsupported, match=says):
        model(batch, batch[:, 0], layout=Layout(context=context))


def test_a_classifier_that_drops_units_is_refused():
    model = built(SDPA, Head.classification, head_dropout=0.1)
    context = Context.of(Threads(0, [[], []]), LENGTH)
    batch = context.part(tokens(), 2)
    with pytest.raises(Unsupported, match=r"under head_dropout=0\.1"):
        model(batch, batch[:, 0, 0], layout=Layout(context=context))


def test_a_stream_is_refused():
    model = built(SDPA, Head.language_modelling)
    layout = Layout(context=Context.of(Threads(0, [[], []]), LENGTH))
    batch = tokens(length=6)
    with pytest.raises(Unsupported, match=r"a state along time: got hardware.context=2"):
        model(batch, batch[:, 0], state=model.initial_state(3, 4), layout=layout)


def test_parts_that_are_longer_together_than_the_model_are_refused():
    model = built(SDPA, Head.language_modelling)
    batch = tokens(length=8)
    layout = Layout(context=Context((8, 8), Threads(0, [[], []])))
    with pytest.raises(ValueError, match=r"1 to 12 tokens: got parts of \[8, 8\]"):
        model(batch, batch[:, 0], layout=layout)

"""Only positions that are asked reach a head, and nothing else about it changes."""

import pytest
import torch
from torch import nn

from lra.models.backbone import heads
from lra.models.backbone.adaptive import AdaptiveEmbedding, TiedAdaptiveHead
from lra.models.backbone.heads import AdaptiveHead, LanguageHead, TokenHead
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.contract.counting import count_operations
from lra.models.families.sdpa import SDPA
from lra.runners.training.objective import objective
from lra.runners.training.prefetch import asked_of
from lra.tasks.diagnostics.mqar import MQAR
from lra.tasks.task import Batch

WIDTH, VOCABULARY = 16, 50
HEADS = {
    "full": lambda: LanguageHead(WIDTH, VOCABULARY, None),
    "factorised": lambda: LanguageHead(4, VOCABULARY, None, nn.Linear(WIDTH, 4)),
    "adaptive": lambda: AdaptiveHead(WIDTH, VOCABULARY, [7, 20], 2.0),
    "adaptive, dropping": lambda: AdaptiveHead(WIDTH, VOCABULARY, [7, 20], 2.0, dropout=0.3),
    "tied": lambda: TiedAdaptiveHead(AdaptiveEmbedding(VOCABULARY, WIDTH, [7, 20], 2.0)),
    "tied, dropping": lambda: TiedAdaptiveHead(
        AdaptiveEmbedding(VOCABULARY, WIDTH, [7, 20], 2.0), dropout=0.3
    ),
}
ASKED = {
    "some": torch.tensor([0, 3, 4, 17]),
    "none": torch.tensor([], dtype=torch.long),
}


def judged(head: TokenHead, weight: torch.Tensor, asked: torch.Tensor | None, smoothing: float):
    """Return losses and hits of all positions, and the gradient of each weight and of the input."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 10, WIDTH, dtype=torch.float64, generator=generator).requires_grad_()
    # No id of the middle group is asked; most of the last group are.
    target = torch.randint(20, VOCABULARY, (2, 10), generator=generator)
    target[0, 1:3] = 9
    torch.manual_seed(2)
    nll, hit = head.judge(x, target, smoothing, asked)
    head.zero_grad()
    (nll * weight).sum().backward()
    return nll.detach(), hit, [x.grad, *(p.grad for p in head.parameters())]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("which", ASKED)
@pytest.mark.parametrize("limit", [None, 3 * VOCABULARY])
def test_losses_hits_and_gradients_are_those_of_weights(name, training, which, limit, monkeypatch):
    if limit:  # several pieces
        monkeypatch.setattr(heads, "CHUNK_ELEMENTS", limit)
        monkeypatch.setattr(heads, "ADAPTIVE_ELEMENTS", limit)
    torch.manual_seed(0)
    head, asked = HEADS[name]().double().train(training), ASKED[which]
    weight = torch.zeros(20, dtype=torch.float64).index_fill(0, asked, 1.0).view(2, 10)
    smoothing = 0.1 if isinstance(head, LanguageHead) else 0.0
    nll, hit, grads = judged(head, weight, asked, smoothing)
    all_nll, all_hits, expected = judged(head, weight, None, smoothing)
    torch.testing.assert_close(nll, all_nll * weight)
    if training:
        assert hit is None
    else:
        assert torch.equal(hit, all_hits & (weight > 0))
    for ours, theirs in zip(grads, expected, strict=True):
        assert (ours is None) == (theirs is None)  # without a gradient, no decay and no step
        if theirs is not None:
            torch.testing.assert_close(ours, theirs)


def test_classes_without_weight_never_reach_the_classifier():
    facts = TaskFacts(head=Head.classification, vocabulary=9, classes=3, max_length=8)
    model = Backbone(BackboneConfig(depth=1, width=8, heads=2), facts, [SDPA], seed=0).eval()
    tokens = torch.randint(9, (5, 1, 8), generator=torch.Generator().manual_seed(0))
    target, asked = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([1, 4])
    read = []
    model.head.register_forward_hook(lambda head, inputs, out: read.append(len(out)))
    part, whole = model(tokens, target, asked=asked), model(tokens, target)
    assert read == [2, 5]
    torch.testing.assert_close(part.nll[asked], whole.nll[asked])
    assert torch.equal(part.hit[asked], whole.hit[asked])
    assert not part.nll[[0, 2, 3]].any()
    assert not part.hit[[0, 2, 3]].any()


def test_operations_of_the_head_are_those_of_asked_positions(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    task = MQAR(train_examples=64, validation_examples=1, test_examples=1)
    task.prepare()
    assert (task.length, task.pairs, task.vocabulary) == (64, 4, 8192)
    (batch,) = task.batches("train", batch_size=64, seed=0)
    facts = TaskFacts(head=Head.language_modelling, vocabulary=8192, classes=8192, max_length=64)
    config = BackboneConfig(depth=2, width=64, heads=2, feed_forward_width=1)
    model = Backbone(config, facts, [SDPA], seed=0).train()

    def step(given: Batch, asked):
        outcome = model(given.tokens, given.target, asked=asked)
        objective(outcome, given.weight, given.weight.sum(), 1.0).backward()

    asked = asked_of(batch, torch.device("cpu"))
    assert len(asked) == 64 * 4
    one = 2 * 64 * 8192  # operations of the head at one position; a multiply-add counts as 2
    whole, part = (count_operations(lambda n=n: step(batch, n)) for n in (None, asked))
    # Forward, and two products of equal size backward. All 4,096 positions do not fit into one
    # piece, so that backward computes their logits again.
    assert whole - part == one * 64 * (4 * 64 - 3 * 4)
    with torch.no_grad():
        forward = count_operations(lambda: model(batch.tokens, batch.target, asked=asked))
    # Of a row: four projections, scores and weighted values, and a network of one unit, twice.
    layers = 2 * 2 * 64 * (4 * 64 * 64 + 2 * 64 * 64 + 2 * 64)
    assert forward == 64 * (4 * one + layers)
    assert whole > 6 * part

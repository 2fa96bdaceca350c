"""Adaptive embedding and its tied head against PyTorch's module and plain tables."""

import pytest
import torch
from torch import nn

from lra.models.backbone.adaptive import AdaptiveEmbedding, TiedAdaptiveHead
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.softmax import SoftmaxAttention
from tests.attention import drawn

VOCABULARY, WIDTH, CUTOFFS = 40, 16, [10, 25]
TARGET = torch.tensor([0, 9, 10, 24, 25, 39, 3, 12, 30, 11, 26, 8])


def embedding(shrink: float) -> AdaptiveEmbedding:
    torch.manual_seed(0)
    return AdaptiveEmbedding(VOCABULARY, WIDTH, CUTOFFS, shrink).double()


@pytest.mark.parametrize("shrink", [1.0, 2.0])
def test_vectors_are_rows_of_tables_led_to_the_width(shrink: float) -> None:
    made = embedding(shrink)
    rows = []
    for group, table in enumerate(made.tables):
        rows.append(table if made.maps is None else table @ made.maps[group].weight.T)
    plain = torch.cat(rows)
    ids = TARGET.view(2, 6)
    torch.testing.assert_close(made(ids), plain[ids], atol=1e-14, rtol=0)
    widths = [table.shape[1] for table in made.tables]
    assert widths == ([16, 16, 16] if shrink == 1 else [16, 8, 4])
    assert (made.maps is None) == (shrink == 1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shrink", [1.0, 2.0])
def test_the_tied_head_is_pytorchs_module_with_these_weights(shrink: float, training: bool) -> None:
    made = embedding(shrink)
    head = TiedAdaptiveHead(made).double().train(training)
    theirs = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, VOCABULARY, CUTOFFS, div_value=shrink).double()
    with torch.no_grad():
        theirs.head.weight.copy_(torch.cat((made.weight, head.groups)))
        for group, tail in enumerate(theirs.tail, start=1):
            inward = torch.eye(WIDTH) if made.maps is None else made.maps[group].weight.T
            tail[0].weight.copy_(inward)
            tail[1].weight.copy_(made.tables[group])
    x = drawn(len(TARGET), WIDTH).requires_grad_()
    nll, hit = head.judge(x[None], TARGET[None])
    torch.testing.assert_close(nll[0], -theirs(x, TARGET).output, atol=1e-12, rtol=0)
    log_prob = theirs.log_prob(x)
    torch.testing.assert_close(head(x), log_prob, atol=1e-12, rtol=0)
    torch.testing.assert_close(log_prob.exp().sum(-1), torch.ones(len(x)).double())
    if training:
        assert hit is None
    else:
        assert torch.equal(hit[0], log_prob.argmax(-1) == TARGET)
    # each table learns as vector and as probability; finite differences of the whole
    leaves = [x, *head.parameters()]
    found = torch.autograd.grad(nll.sum(), leaves, materialize_grads=True)
    for leaf, gradient in zip(leaves, found, strict=True):
        direction = drawn(*leaf.shape, seed=3)
        with torch.no_grad():
            values = []
            for step in (1e-6, -1e-6):
                leaf.add_(direction, alpha=step)
                values.append(head.judge(x[None], TARGET[None])[0].sum())
                leaf.add_(direction, alpha=-step)
        torch.testing.assert_close(
            (gradient * direction).sum(), (values[0] - values[1]) / 2e-6, atol=1e-7, rtol=1e-6
        )


def model(**changes) -> Backbone:
    options = {
        "width": WIDTH, "softmax": "adaptive", "embedding": "adaptive",
        "softmax_cutoffs": CUTOFFS, "softmax_shrink": 2.0, "positions": "none", **changes,
    }  # fmt: skip
    facts = TaskFacts(head=Head.language_modelling, vocabulary=VOCABULARY, classes=1, max_length=8)
    return Backbone(BackboneConfig(**options), facts, [SoftmaxAttention], seed=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"softmax": "full"}, "softmax=full needs a single one"),
        ({"embedding": "full"}, "set tied_embeddings=false, or embedding=adaptive"),
        ({"softmax_cutoffs": [50]}, "first one must be below the vocabulary size 40"),
        ({"softmax_shrink": 5.0}, "from width=16 on"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model(**changes)

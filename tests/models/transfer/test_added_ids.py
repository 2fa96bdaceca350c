"""Weights between models of the same tokens, one of which has an id more for its objective."""

import pytest
import torch

from lra.models.backbone.heads import WITH_CLS, Pooling
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.models.transfer.weights import Origin, transfer

TOKENS, LENGTH, WIDTH = 11, 6, 8


def build(head: Head, *, seed: int, added: int = 0, tokens: int = TOKENS, **options) -> Backbone:
    config = BackboneConfig(depth=1, width=WIDTH, heads=2, feed_forward_width=8, **options)
    facts = TaskFacts(
        head=head, vocabulary=tokens + added, classes=3, max_length=LENGTH, added_ids=added
    )
    return Backbone(config, facts, [SoftmaxAttention], seed=seed)


@pytest.mark.parametrize("pooling", Pooling)
def test_a_classifier_from_masked_modelling(pooling):
    source = build(Head.masked_modelling, seed=1, added=1)
    target = build(Head.classification, seed=2, pooling=pooling)
    drawn = {name: value.clone() for name, value in target.state_dict().items()}
    report = transfer(source, target)
    given, found = source.state_dict(), target.state_dict()
    tokens = given["embedding.weight"][:TOKENS]
    assert torch.equal(found["embedding.weight"], tokens / (1 / WIDTH**0.5))
    table = given["positions.table"]
    if pooling in WITH_CLS:
        assert torch.equal(found["positions.table"][1:], table)
        assert torch.equal(found["positions.table"][0], drawn["positions.table"][0])
        assert report.origins["cls"] is Origin.drawn
    else:
        assert torch.equal(found["positions.table"], table)
    for name, value in found.items():
        if name.startswith("stack."):
            assert torch.equal(value, given[name])
            assert report.origins[name] is Origin.copied
        elif name.startswith(("head.", "cls")):
            assert torch.equal(value, drawn[name])
            assert report.origins[name] is Origin.drawn
    rows = torch.randint(TOKENS, (2, 1, LENGTH))
    if pooling not in WITH_CLS:  # the blocks then see what they saw
        one, other = (model.run(rows, None, None).x for model in (source, target))
        assert torch.allclose(one, other, atol=1e-5)


def test_an_added_id_of_the_target_is_its_own():
    source = build(Head.classification, seed=1, pooling=Pooling.mean)
    target = build(Head.masked_modelling, seed=2, added=1, tied_embeddings=False)
    own = target.state_dict()["embedding.weight"][-1].clone()
    transfer(source, target)
    found = target.state_dict()["embedding.weight"]
    assert torch.equal(found[:-1], source.state_dict()["embedding.weight"])
    assert torch.equal(found[-1], own)


def test_between_two_objectives_the_added_id_goes_along():
    source = build(Head.masked_modelling, seed=1, added=1)
    target = build(Head.language_modelling, seed=2, added=1)
    transfer(source, target)
    assert torch.equal(target.head.weight, source.head.weight)


@pytest.mark.parametrize("tokens", [TOKENS - 1, TOKENS + 1])
def test_other_tokens_are_refused(tokens):
    source = build(Head.masked_modelling, seed=1, added=1, tokens=tokens)
    target = build(Head.classification, seed=2)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(Unsupported, match="choose a task with the same vocabulary"):
        transfer(source, target)
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())

"""A model to which a sequence is a bag of tokens is one on purpose."""

import dataclasses

import pytest

from lra.models.backbone.assembly import idle_for_task
from lra.models.backbone.heads import ORDERLESS
from lra.models.backbone.model import Backbone, BackboneConfig, Head, Pooling, Positions
from lra.models.backbone.requirements import check_order
from lra.models.families.fnet import FNet
from lra.models.families.identity import Identity
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from tests.models.backbone.small_backbones import CONFIG, facts, tokens

ONCE = [Head.classification, Head.pair]


def checked(mixers, head=Head.classification, *, stack=None, **options) -> Backbone:
    config = dataclasses.replace(CONFIG, **{"positions": Positions.none, **options})
    model = Backbone(config, facts(head), mixers, stack=stack, seed=0).double().eval()
    check_order(model.stack, config, facts(head))
    return model


@pytest.mark.parametrize("head", ONCE)
@pytest.mark.parametrize("pooling", Pooling)
def test_what_cannot_tell_the_order_is_refused(head, pooling):
    if pooling not in ORDERLESS:
        checked([SoftmaxAttention], head, pooling=pooling)
        return
    with pytest.raises(Unsupported) as refusal:
        checked([SoftmaxAttention], head, pooling=pooling)
    for words in ("SoftmaxAttention", f"none, pooling={pooling}", "positions=learned"):
        assert words in str(refusal.value)
    model = checked([SoftmaxAttention], head, pooling=pooling, order_blind=True)
    parts = 2 if head == Head.pair else 1
    given = tokens(parts)
    here, there = (model.predict(each)[0] for each in (given, given.flip(-1)))
    assert (here - there).abs().max() < 1e-12


@pytest.mark.parametrize("positions", [each for each in Positions if each != Positions.none])
def test_positions_of_any_kind_tell_the_order(positions):
    model = checked([SoftmaxAttention], positions=positions, width=8, heads=2)
    with pytest.raises(ValueError, match="order_blind has no effect under positions="):
        dataclasses.replace(model.config, order_blind=True)


def test_one_layer_that_sees_order_is_enough():
    checked([SoftmaxAttention, FNet])
    with pytest.raises(Unsupported, match="no effect on SoftmaxAttention, Identity"):
        checked([SoftmaxAttention, Identity])
    with pytest.raises(Unsupported, match=r"but FNet depends on it .* leave it at false"):
        checked([SoftmaxAttention, FNet], order_blind=True)


def test_a_model_of_masked_tokens_is_refused_as_well():
    with pytest.raises(Unsupported, match="positions=none; choose positions=learned"):
        checked([SoftmaxAttention], Head.masked_modelling)
    checked([SoftmaxAttention], Head.masked_modelling, order_blind=True)


def test_a_language_model_sees_order_by_what_it_hides():
    checked([SoftmaxAttention], Head.language_modelling)
    blind = BackboneConfig(positions=Positions.none, order_blind=True)
    found = idle_for_task(blind, facts(Head.language_modelling))
    assert (
        "without a task whose answers may depend on earlier and later tokens"
        in found["order_blind"]
    )


@pytest.mark.parametrize("pooling", [Pooling.first, Pooling.last])
def test_it_needs_an_answer_that_is_read_without_an_order(pooling):
    with pytest.raises(ValueError, match=f"under pooling={pooling}: got true; leave it at false"):
        BackboneConfig(positions=Positions.none, pooling=pooling, order_blind=True)

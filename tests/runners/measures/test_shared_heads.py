"""Trained heads as collaborative ones: the same function at full rank, and what is refused."""

import copy
from functools import partial

import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression.head_importance import remove_heads
from lra.models.families.collaborative import CollaborativeAttention
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Positions, Unsupported
from lra.runners.measures.compression.collaborative import with_shared_heads

FACTS = TaskFacts(head=Head.classification, vocabulary=11, classes=3, max_length=9, padded=True)


def model_of(mixer=SoftmaxAttention, facts=FACTS, **options):
    config = BackboneConfig(
        **{"width": 16, "heads": 4, "depth": 2, "feed_forward_width": 8, **options}
    )
    model = Backbone(config, facts, [mixer], seed=1).double().eval()
    draw = torch.Generator().manual_seed(2)
    for name, value in model.named_parameters():
        if "_proj.bias" in name:
            value.data = torch.randn(value.shape, generator=draw, dtype=torch.float64)
    return model


def logits(model):
    tokens = torch.arange(27).view(3, 1, 9) % 11
    keep = (torch.arange(9) < torch.tensor([9, 4, 7])[:, None])[:, None]
    with torch.no_grad():
        return model.predict(tokens, keep if model.facts.padded else None)[0]


@pytest.mark.parametrize("mixer", [SoftmaxAttention, SDPA])
@pytest.mark.parametrize("causal", [False, True])
def test_at_full_rank_it_is_the_same_function_whatever_the_biases(mixer, causal):
    facts = FACTS
    if causal:
        facts = TaskFacts(head=Head.language_modelling, vocabulary=11, classes=11, max_length=9)
    model = model_of(mixer, facts, head_width=6)
    wanted = logits(model)
    errors = with_shared_heads(model, 1.0)
    assert {rank for rank, _ in errors.values()} == {24}
    assert max(error for _, error in errors.values()) < 1e-6
    assert all(isinstance(block.mixer, CollaborativeAttention) for block in model.stack.blocks)
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-6)


def test_fewer_columns_err_more_and_have_fewer_parameters():
    whole, last, size = model_of(), 0.0, None
    for share in (0.75, 0.5, 0.25):
        model = copy.deepcopy(whole)
        errors = with_shared_heads(model, share)
        apart = float((logits(model) - logits(whole)).norm())
        assert apart > last
        assert {rank for rank, _ in errors.values()} == {round(16 * share)}
        last, numbers = apart, sum(p.numel() for p in model.parameters())
        assert size is None or numbers < size
        size = numbers


def test_heads_that_are_left_are_shared_too():
    model = model_of()
    remove_heads(model, {0: [1], 1: [0, 3]})
    wanted = logits(model)
    with_shared_heads(model, 1.0)
    torch.testing.assert_close(logits(model), wanted, rtol=0, atol=1e-6)


def test_what_has_no_products_of_tokens_alone_is_refused():
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"at most 1: got {share}"):
            with_shared_heads(model_of(), share)
    with pytest.raises(Unsupported, match=r"LinearAttention.*SoftmaxAttention or SDPA"):
        with_shared_heads(model_of(LinearAttention), 0.5)
    with pytest.raises(Unsupported, match=r"positions=learned"):
        with_shared_heads(model_of(positions=Positions.rotary), 0.5)
    for option in ("output_gate", "qk_norm", "sink"):
        with pytest.raises(Unsupported, match=f"has {option}, which shared heads do not support"):
            with_shared_heads(model_of(partial(SDPA, **{option: True})), 0.5)

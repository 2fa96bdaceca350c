"""A narrow table and a map to the model's width; a tied head goes the way back."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lra.models.backbone.assembly import idle_for_task
from lra.models.backbone.config import BackboneConfig
from lra.models.backbone.model import Head
from lra.models.mixer import Unsupported
from lra.models.transfer.weights import Parts, transfer
from tests.models.backbone.small_backbones import VOCABULARY, build, facts, tokens

NARROW, WIDTH = 3, 8


@pytest.mark.parametrize("tied", [True, False])
def test_vectors_and_answers(averaging, tied):
    options = {"embedding_width": NARROW, "tied_embeddings": tied}
    model = build(averaging, Head.language_modelling, **options)
    part, ids = model.embedding, tokens()[:, 0]
    torch.nn.init.normal_(part.map.bias)
    scale = NARROW**0.5 if tied else 1.0
    wanted = scale * part.weight[ids] @ part.map.weight.T + part.map.bias
    torch.testing.assert_close(part(ids), wanted, atol=1e-14, rtol=0)
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    if tied:
        assert model.head.weight is part.weight
        answers = F.linear(model.head.inward(x), part.weight)
    else:
        assert model.head.weight.shape == (VOCABULARY, WIDTH)
        answers = F.linear(x, model.head.weight)
    torch.testing.assert_close(model.head(x), answers)
    maps = NARROW * WIDTH + WIDTH
    assert sum(p.numel() for p in part.parameters()) == VOCABULARY * NARROW + maps
    loss = model(tokens(), ids).nll.sum()
    gradients = torch.autograd.grad(loss, [*part.parameters(), *model.head.parameters()])
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_other_parts_are_drawn_alike(averaging):
    plain, narrow = build(averaging), build(averaging, embedding_width=NARROW)
    for name, here in narrow.named_parameters():
        if not name.startswith(("embedding.", "positions.")):
            assert torch.equal(here, plain.get_parameter(name)), name


def test_weights_go_to_a_table_of_the_same_width(averaging):
    source = build(averaging, Head.language_modelling, embedding_width=NARROW)
    target = build(averaging, embedding_width=NARROW, seed=1)
    transfer(source, target)
    ids = tokens()[:, 0]
    wanted = source.embedding(ids)
    torch.testing.assert_close(target.embedding(ids), wanted)
    with pytest.raises(Unsupported, match=f"set model.backbone.embedding_width={NARROW}"):
        transfer(source, build(averaging))
    transfer(source, other := build(averaging), Parts.blocks)
    first = "stack.blocks.0.network.0.weight"
    assert torch.equal(other.get_parameter(first), source.get_parameter(first))


def test_refusals():
    with pytest.raises(ValueError, match="embedding_width must be at least 1: got 0"):
        BackboneConfig(embedding_width=0)
    with pytest.raises(ValueError, match="embedding_width has no effect under embedding="):
        BackboneConfig(embedding_width=4, embedding="adaptive", softmax="adaptive")
    numbers = replace(facts(), scalars=True)
    found = idle_for_task(BackboneConfig(embedding_width=4), numbers)
    assert "whose tokens are ids" in found["embedding_width"]

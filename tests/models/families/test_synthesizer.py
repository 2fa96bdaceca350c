"""Synthetic attention against logits written out: its limits and gradients."""

import pytest
import torch

from lra.models.families.synthesizer import Component
from lra.models.mixer import Layout, Variant
from lra.models.ops import synthetic as blocked
from lra.models.ops.synthetic import Logits, fused_attention, synthetic_attention
from tests.attention import drawn
from tests.models.families.synthesizer_forms import (
    HEADS,
    LONGEST,
    WIDTH,
    built,
)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, heads and examples, so that short inputs cross their borders."""
    monkeypatch.setattr(blocked, "ROWS", 4)
    monkeypatch.setitem(blocked.BLOCK_ELEMENTS, "cpu", 2 * 4 * 18)


SMALL = pytest.mark.usefixtures("small_blocks")


def test_what_is_no_inner_product_is_not_fused():
    mixer = built(Component.random, Component.dot)
    assert not mixer.fused
    with pytest.raises(ValueError, match="inner products"):
        fused_attention(mixer.logits(drawn(1, 5, WIDTH)), drawn(1, HEADS, 5, 4))


def test_variant_lra_mixes_heads_with_positions_in_dense_and_the_paper_does_not():
    mixer, x = built(Component.dense, variant=Variant.lra), drawn(4, 18, WIDTH)
    hidden = mixer.dense_in(x).relu().view(4, 18, HEADS, 4)
    logits = hidden @ mixer.dense_out[0].T + mixer.dense_bias[0, :, 0]
    logits = logits.reshape(4, HEADS, 18, LONGEST)[..., :18]  # as that code does
    o = logits.softmax(-1) @ mixer.split(mixer.v_proj(x))
    wanted = mixer.out_proj(o.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(mixer(x, Layout()), wanted, rtol=1e-12, atol=1e-13)
    # position 9's logits in the paper come from token 9 alone; there from another one
    moved = x.clone()
    moved[:, 9] *= 2
    for variant, alone in ((Variant.faithful, True), (Variant.lra, False)):
        mixer = built(Component.dense, variant=variant)
        change = (mixer.logits(moved).queries - mixer.logits(x).queries).abs().sum((0, 3)) > 0
        assert torch.equal(change.any(0).nonzero().flatten(), torch.tensor([9])) == alone


@SMALL
def test_dropout_acts_in_training_alone_and_keeps_the_mean():
    mixer = built(Component.random, attention_dropout=0.25)
    assert torch.equal(mixer(drawn(2, 18, WIDTH), Layout()), mixer(drawn(2, 18, WIDTH), Layout()))
    table = drawn(HEADS, 60, 60)
    identity = torch.eye(60, dtype=torch.float64).expand(2, HEADS, 60, 60)
    torch.manual_seed(0)
    dropped = synthetic_attention(Logits(table=table), identity, dropout=0.25)
    assert torch.equal(dropped[0], dropped[1])
    alive = dropped != 0
    assert 0.73 < alive.double().mean() < 0.77
    wanted = table.softmax(-1).expand(2, HEADS, 60, 60) / 0.75
    torch.testing.assert_close(dropped[alive], wanted[alive])
    x = drawn(2, 18, WIDTH)
    assert not torch.allclose(mixer.train()(x, Layout()), mixer.eval()(x, Layout()))

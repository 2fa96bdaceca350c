"""Synthetic attention against logits written out: its limits and gradients."""

import pytest
import torch

from lra.models.families.synthesizer import Component
from lra.models.mixer import Layout, Positions, Variant, blanked
from lra.models.ops import synthetic as blocked
from lra.models.ops.exact import softmax_attention
from lra.models.ops.synthetic import Logits, fused_attention, synthetic_attention
from lra.models.positions import alibi_slopes, rotate
from tests.attention import DIRECTIONS, compare, drawn
from tests.models.families.synthesizer_forms import (
    HEADS,
    KINDS,
    LONGEST,
    MIXTURES,
    WIDTH,
    built,
    literal,
    padding,
)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, heads and examples, so that short inputs cross their borders."""
    monkeypatch.setattr(blocked, "ROWS", 4)
    monkeypatch.setitem(blocked.BLOCK_ELEMENTS, "cpu", 2 * 4 * 18)


SMALL = pytest.mark.usefixtures("small_blocks")


@SMALL
@KINDS
@DIRECTIONS
@pytest.mark.parametrize(("length", "padded"), [(23, False), (18, True)])
def test_outputs_and_gradients_equal_the_equation(components, causal, length, padded):
    mixer = built(*components, causal=causal)
    x = drawn(4, length, WIDTH).requires_grad_()
    keep = padding(length) if padded else None
    layout = Layout(keep=keep)
    seen, wanted = mixer(x, layout), literal(mixer, blanked(x, layout, mixer.traits), keep)
    compare(seen, wanted, [x, *mixer.parameters()], rtol=1e-11, looser=10)


@SMALL
@DIRECTIONS
def test_dense_with_constant_keys_is_dense_with_explicit_logits(causal):
    """One kernel against made logits: the same function twice."""
    mixer = built(Component.dense, Component.dot, causal=causal)
    assert mixer.fused
    logits, v = mixer.logits(drawn(4, 18, WIDTH)), drawn(4, HEADS, 18, 4, seed=2)
    for keep in (None, padding(18)):
        torch.testing.assert_close(
            fused_attention(logits, v, keep=keep, causal=causal),
            synthetic_attention(logits, v, keep=keep, causal=causal),
            rtol=1e-12,
            atol=1e-13,
        )


def test_what_is_no_inner_product_is_not_fused():
    mixer = built(Component.random, Component.dot)
    assert not mixer.fused
    with pytest.raises(ValueError, match="inner products"):
        fused_attention(mixer.logits(drawn(1, 5, WIDTH)), drawn(1, HEADS, 5, 4))


@SMALL
@DIRECTIONS
def test_common_logits_with_padding_equal_the_masked_softmax(causal):
    table = drawn(HEADS, LONGEST, LONGEST).requires_grad_()
    v, keep = drawn(4, HEADS, 18, 5, seed=1).requires_grad_(), padding(18)
    o = synthetic_attention(Logits(table=table), v, keep=keep, causal=causal)
    seen = keep[:, None, None, :]
    if causal:
        seen = seen & torch.ones(18, 18, dtype=torch.bool).tril()
    scores = table[:, :18, :18].masked_fill(~seen, -torch.inf)
    wanted = scores.softmax(-1).nan_to_num() @ v
    torch.testing.assert_close(o, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("component", list(Component))
def test_a_mixture_that_gives_all_to_one_is_that_one(component):
    others = [c for c in (Component.dot, Component.factorised_dense) if c is not component]
    mixture, alone = built(component, *others), built(component)
    alone.load_state_dict(mixture.state_dict(), strict=False)
    with torch.no_grad():
        mixture.alpha[0] = 800.0
    x = drawn(4, 18, WIDTH)
    torch.testing.assert_close(mixture(x, Layout()), alone(x, Layout()), rtol=1e-12, atol=1e-13)


@SMALL
def test_variant_lra_adds_components_and_masks_beside_dot_alone():
    x, keep = drawn(4, 18, WIDTH).requires_grad_(), padding(18)
    mixer = built(*MIXTURES[0], variant=Variant.lra)
    assert mixer.alpha is None
    assert mixer.traits.supports == {"keep"}
    layout = Layout(keep=keep)
    real = literal(mixer, blanked(x, layout, mixer.traits), keep)
    wanted = real.where(keep[..., None], mixer.out_proj(mixer.v_proj(x).mean(1, keepdim=True)))
    compare(mixer(x, layout), wanted, [x, *mixer.parameters()], rtol=1e-11, looser=10)
    assert built(Component.random, variant=Variant.lra).traits.supports == frozenset()
    assert built(Component.random).traits.supports == {"keep"}


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


@SMALL
@DIRECTIONS
def test_alibi_and_rotary(causal):
    x = drawn(4, 18, WIDTH)
    mixer = built(Component.dot, causal=causal, positions=Positions.alibi)
    assert not mixer.fused
    q, k, v = (mixer.split(part(x)) for part in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    place = torch.arange(18)
    distance = (place[:, None] - place).abs().double()
    scores = q @ k.mT / 2 - alibi_slopes(HEADS).double()[:, None, None] * distance
    if causal:
        scores = scores.masked_fill(place > place[:, None], -torch.inf)
    wanted = mixer.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(mixer(x, Layout()), wanted, rtol=1e-12, atol=1e-13)
    mixer = built(Component.dot, causal=causal, positions=Positions.rotary)
    o = softmax_attention(rotate(q), rotate(k), v, causal=causal)
    wanted = mixer.out_proj(o.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(mixer(x, Layout()), wanted, rtol=1e-12, atol=1e-13)
    assert built(Component.dot).traits.positions == {"alibi", "rotary"}
    assert built(Component.random).traits.positions == {"alibi"}

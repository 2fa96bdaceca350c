"""sLSTM token by token, its initial values, and what its options and its state are."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.slstm import SLSTM, ForgetBias, RecurrentDraw
from lra.models.mixer import Layout, Site
from tests.attention import builder, compare, drawn
from tests.literal import recurrent as reference

WIDTH, HEADS = 12, 3
LENGTHS = [1, 7, 8, 9, 29]
built = builder(SLSTM, causal=True, recurrent=RecurrentDraw.uniform, moved=0.3)


def literal(mixer, x):
    c = x
    if len(mixer.convolutions):
        (layer,) = mixer.convolutions
        padded = F.pad(x.mT, (layer.weight.shape[1] - 1, 0))
        c = F.silu(F.conv1d(padded, layer.weight[:, None], layer.bias, groups=WIDTH).mT)
    maps = (mixer.input_map, mixer.forget_map, mixer.cell_map, mixer.output_map)
    gates = [
        y @ torch.block_diag(*each.weight).mT for y, each in zip((c, c, x, x), maps, strict=True)
    ]
    gates = torch.stack(gates, 2).unflatten(-1, (HEADS, -1)) + mixer.bias
    h = reference.exponential_lstm(gates, mixer.recurrent)
    centred = h - h.mean(-1, keepdim=True)
    normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return normed.flatten(2) * mixer.norm_weight


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    "options", [{}, {"convolution": None}, {"forget_bias": ForgetBias.linear, "convolution": 2}]
)
def test_it_is_the_paper_token_by_token(length, options):
    mixer, x = built(**options), drawn(2, length, WIDTH).requires_grad_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10, rtol=1e-9, looser=10)


def test_both_ends_are_added_before_the_norm():
    x = drawn(2, 13, WIDTH)
    one, both = built(convolution=None), built(causal=False, convolution=None)
    one.norm_weight.data.fill_(1)
    both.norm_weight.data.fill_(1)

    def heads(y):
        maps = (one.input_map, one.forget_map, one.cell_map, one.output_map)
        gates = torch.stack([each(y) for each in maps], 2).unflatten(-1, (HEADS, -1)) + one.bias
        return reference.exponential_lstm(gates, one.recurrent)

    together = heads(x) + heads(x.flip(1)).flip(1)
    wanted = F.layer_norm(together, together.shape[-1:]).flatten(2)
    torch.testing.assert_close(both(x, Layout()), wanted, atol=1e-10, rtol=0)


def test_forget_gates_begin_as_in_the_package():
    """Layer 1 of 3, heads of 5: 5 - 12 (j / 4)^(0.3 + 1.3 / 2); else 3 to 6. Other biases are 0."""
    site = Site(width=10, heads=2, max_length=64, causal=True, layer=1, depth=3)
    bias = SLSTM(site).bias
    wanted = [5 - 12 * (j / 4) ** 0.95 for j in range(5)]
    torch.testing.assert_close(bias[1], torch.tensor([wanted, wanted]))
    assert not bias[[0, 2, 3]].any()
    steps = SLSTM(site, forget_bias=ForgetBias.linear).bias[1, 0]
    torch.testing.assert_close(steps, torch.linspace(3, 6, 5))


def test_maps_of_the_last_outputs_begin_as_asked_for():
    site = Site(width=64, heads=2, max_length=64, causal=True)
    assert not SLSTM(site).recurrent.any()
    drawn_ = SLSTM(site, recurrent=RecurrentDraw.uniform).recurrent.abs()
    assert 0.12 < drawn_.max() <= 0.125


def test_bad_options_say_what_is_wanted():
    with pytest.raises(ValueError, match="convolution counts taps, at least 2, or null: got 1"):
        built(convolution=1)

"""Preconditioned delta rules: with factors of 1 they are the families; how far factors reach."""

import pytest
import torch

from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.families.kimi_delta import KimiDelta
from lra.models.mixer import Flow, Layout
from lra.models.ops.gated.layer import Borders
from tests.attention import DIRECTIONS, builder, drawn

WIDTH, HEADS = 12, 3
FAMILIES = pytest.mark.parametrize("family", [GatedDeltaNet, KimiDelta])


@DIRECTIONS
@FAMILIES
def test_factors_of_1_give_the_family_itself_exactly(family, causal):
    """Also the same draws: parameters that are added are drawn last."""
    plain, ours = (builder(family, causal=causal)(precondition=x) for x in (None, 1.0))
    weights = ours.state_dict()
    for name, value in plain.state_dict().items():
        assert torch.equal(weights[name], value)
    x = drawn(2, 21, WIDTH)
    assert torch.equal(ours(x, Layout()), plain(x, Layout()))
    scaled = builder(family, causal=causal)(precondition=1.5)
    assert (scaled(x, Layout()) - plain(x, Layout())).abs().max() > 1e-2


@FAMILIES
@pytest.mark.parametrize("largest", [1.5, 2.0])
def test_factors_stay_between_1_over_x_and_x(family, largest):
    mixer = builder(family, causal=True)(precondition=largest)
    layer = mixer.preconditioner
    x = drawn(1, 64, WIDTH)
    k = torch.zeros(1, HEADS, 64, WIDTH // HEADS).double()
    k[..., 0] = 1.0  # one channel has all of each key, and the others have nothing
    layer.centre.data.fill_(-3.0)
    factors, moments = layer(x, k, layer.empty(1), Borders(None, None))
    assert (factors[..., 1:] > 0.9 * largest).all()
    assert (factors[..., 1:] < largest).all()
    assert (factors[:, :, -1, 0] < 1).all()
    assert (factors[..., 0] > 1 / largest).all()
    assert (moments[..., 1:] == 0).all()


@FAMILIES
def test_second_moments_are_k_numbers_of_a_head_that_a_stream_carries_on(family):
    mixer = builder(family, causal=True, moved=0.3)(precondition=1.5)
    x = drawn(2, 20, WIDTH)
    state = mixer.initial_state(2, 20)
    assert state[-1].shape == (2, HEADS, WIDTH // HEADS)
    first = mixer.extend(Flow(x[:, :13], state), Layout())
    carried = mixer.extend(Flow(x[:, 13:], first.state), Layout()).x
    forgotten = (*first.state[:-1], torch.zeros_like(first.state[-1]))
    without = mixer.extend(Flow(x[:, 13:], forgotten), Layout()).x
    whole = mixer(x, Layout())[:, 13:]
    torch.testing.assert_close(carried, whole, atol=1e-12, rtol=0)
    assert (without - whole).abs().max() > 1e-4

"""cosFormer against the literal cosine weights, and its horizon."""

import pytest
import torch

from lra.models.families.cosformer import Cosformer, Horizon, cosine_maps
from lra.models.mixer import Flow, Layout
from tests.attention import DIRECTIONS, builder
from tests.models.ops.linear.feature_forms import WIDTH, attend, draw, holes

make = builder(Cosformer, heads=2)


@DIRECTIONS
def test_a_row_that_finds_no_weight_is_zero_and_has_no_gradient(causal):
    q, k, v = draw(20)
    with torch.no_grad():
        q[:, :, 4] = -q[:, :, 4].abs()
    keep = torch.ones(2, 20, dtype=torch.bool)
    keep[0] = False
    place = torch.arange(20)[None]
    maps = cosine_maps(place, place, width=WIDTH, horizon=128, dtype=torch.float64)
    out = attend(q, k, v, maps, causal=causal, keep=keep)
    assert not out[0].any()
    assert not out[:, :, 4].any()
    assert out[1].any(-1).float().mean() > 0.8
    for gradient in torch.autograd.grad(out.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert not gradient[0].any()


# the mixer


def test_a_prefix_alone_gives_the_same_only_with_a_fixed_horizon():
    x = torch.randn(1, 64, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    fixed, current = make(causal=True), make(causal=True, horizon=Horizon.current)
    whole = fixed(x, Layout())
    for length in (1, 31, 63):
        short = fixed(x[:, :length], Layout())
        torch.testing.assert_close(short, whole[:, :length], rtol=1e-11, atol=1e-13)
    leak = current(x[:, :32], Layout()) - current(x, Layout())[:, :32]
    assert leak.abs().max() > 1e-3
    assert current.traits.selection_leak
    assert not fixed.traits.selection_leak


def test_the_current_horizon_counts_padding_and_attends_to_it():
    mixer = make(horizon=Horizon.current)
    x = torch.randn(2, 20, 12, dtype=torch.float64)
    assert torch.equal(mixer(x, Layout(keep=holes(20))), mixer(x, Layout()))
    assert mixer.traits.supports == {"start"}
    assert make().traits.supports == {"keep", "start"}


def test_positions_beyond_the_horizon_are_refused():
    mixer = make()
    x = torch.zeros(2, 60, 12, dtype=torch.float64)
    mixer(x, Layout(start=torch.tensor([0, 4])))
    with pytest.raises(ValueError, match="max_length=64: got a sequence that ends at position 65"):
        mixer(x, Layout(start=torch.tensor([0, 5])))
    with pytest.raises(ValueError, match=r"ends at position 65.*max_length >= 65"):
        mixer(torch.zeros(1, 65, 12, dtype=torch.float64), Layout())


def test_the_state_knows_where_the_horizon_ends():
    mixer = make(causal=True, max_length=10)
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    state = mixer.extend(Flow(x, mixer.initial_state(1, 10)), Layout()).state
    with pytest.raises(ValueError, match="ends at position 12"):
        mixer.extend(Flow(x, state), Layout())


@DIRECTIONS
def test_half_precision_does_not_reach_the_angles(causal):
    mixer = make(causal=causal, max_length=4096).float()
    x = torch.randn(1, 4096, 12)
    q, k, v = (y.bfloat16() for y in mixer.project(x, Layout()))
    found = mixer.core(q, k, v, Layout())
    assert found.dtype == torch.bfloat16
    wanted = mixer.core(q.double(), k.double(), v.double(), Layout())
    torch.testing.assert_close(found.double(), wanted, rtol=2**-7, atol=1e-4)

"""cosFormer against the literal cosine weights, and its horizon."""

from functools import partial

import pytest
import torch

from lra.models.families.cosformer import Cosformer, Horizon, cosine_maps
from lra.models.mixer import Flow, Layout, Unsupported
from tests.attention import DIRECTIONS, builder
from tests.literal.features import (
    cosine_weights,
    counting_weights,
    weighted_mean as mean,
)
from tests.models.ops.linear.feature_forms import (
    PADDED,
    WIDTH,
    attend,
    compare,
    draw,
    holes,
    small_blocks,
)

__all__ = ["small_blocks"]
HORIZON = 128


weights = partial(cosine_weights, horizon=HORIZON)


def maps(length, *, keys=None, horizon=HORIZON, start=0):
    queries = torch.arange(start, start + length)[None]
    keys = queries if keys is None else torch.arange(keys)[None]
    return cosine_maps(queries, keys, width=WIDTH, horizon=horizon, dtype=torch.float64)


make = builder(Cosformer, heads=2)


@DIRECTIONS
@PADDED
@pytest.mark.parametrize("length", [1, 2, 63, 101])
@pytest.mark.usefixtures("small_blocks")
def test_outputs_and_gradients_equal_the_literal_weights(length, padded, causal):
    q, k, v = draw(length)
    keep = holes(length) if padded else None
    compare(
        lambda: attend(q, k, v, maps(length), causal=causal, keep=keep),
        lambda: mean(weights(q, k), v, keep=keep, causal=causal),
        (q, k, v),
    )


def test_only_distances_count():
    q, k, v = draw(40)
    compare(
        lambda: attend(q, k, v, maps(40, start=60), causal=True),
        lambda: attend(q, k, v, maps(40), causal=True),
        (q, k, v),
    )


def test_keys_may_be_more_than_queries():
    q, (k, v) = draw(7)[0], draw(23, seed=1)[1:]
    compare(
        lambda: attend(q, k, v, maps(7, keys=23), causal=False),
        lambda: mean(weights(q, k), v),
        (q, k, v),
    )


@DIRECTIONS
def test_a_row_that_finds_no_weight_is_zero_and_has_no_gradient(causal):
    q, k, v = draw(20)
    with torch.no_grad():
        q[:, :, 4] = -q[:, :, 4].abs()
    keep = torch.ones(2, 20, dtype=torch.bool)
    keep[0] = False
    out = attend(q, k, v, maps(20), causal=causal, keep=keep)
    assert not out[0].any()
    assert not out[:, :, 4].any()
    alive = counting_weights(weights(q, k), keep=keep, causal=causal).sum(-1) > 0
    assert alive[1].float().mean() > 0.8
    assert torch.equal((out != 0).any(-1), alive)
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


def test_at_the_longest_length_both_horizons_agree():
    x = torch.randn(2, 64, 12, dtype=torch.float64)
    fixed, current = make(), make(horizon=Horizon.current)
    torch.testing.assert_close(fixed(x, Layout()), current(x, Layout()), rtol=0, atol=0)
    assert current.traits.max_length is None
    assert fixed.traits.max_length == 64


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


@pytest.mark.parametrize("told", [False, True], ids=["counts", "told"])
def test_the_mixer_extends_its_own_state(told):
    mixer = make(causal=True, chunk=4)
    x = torch.randn(2, 24, 12, dtype=torch.float64)
    state, outputs, place = mixer.initial_state(2, 24), [], torch.tensor([3, 7])
    for part in x.split([7, 1, 16], dim=1):
        flow = mixer.extend(Flow(part, state), Layout(start=place) if told else Layout())
        place, state = place + part.shape[1], flow.state
        outputs.append(flow.x)
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x, Layout()), rtol=1e-11, atol=1e-12)
    assert state[-1].tolist() == ([27, 31] if told else [24, 24])


def test_the_state_knows_where_the_horizon_ends():
    mixer = make(causal=True, max_length=10)
    x = torch.randn(1, 6, 12, dtype=torch.float64)
    state = mixer.extend(Flow(x, mixer.initial_state(1, 10)), Layout()).state
    with pytest.raises(ValueError, match="ends at position 12"):
        mixer.extend(Flow(x, state), Layout())


def test_states_are_refused_where_they_mean_nothing():
    with pytest.raises(Unsupported, match="causal"):
        make().initial_state(1, 8)
    with pytest.raises(Unsupported, match="whole sequence"):
        make(causal=True, horizon=Horizon.current).initial_state(1, 8)


def test_a_chunk_holds_a_token():
    with pytest.raises(ValueError, match="got 0"):
        make(chunk=0)


@DIRECTIONS
def test_half_precision_does_not_reach_the_angles(causal):
    mixer = make(causal=causal, max_length=4096).float()
    x = torch.randn(1, 4096, 12)
    q, k, v = (y.bfloat16() for y in mixer.project(x, Layout()))
    found = mixer.core(q, k, v, Layout())
    assert found.dtype == torch.bfloat16
    wanted = mixer.core(q.double(), k.double(), v.double(), Layout())
    torch.testing.assert_close(found.double(), wanted, rtol=2**-7, atol=1e-4)

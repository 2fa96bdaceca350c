"""Gated slots: limits, routes and noise, sizes, first values, and what is refused."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lra.models.families.slots import GatedSlots
from lra.models.mixer import Layout
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.slot_product import slot_product
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn
from tests.models.families.released import slots as released

STORED = np.load(released.OUTPUTS)
built = builder(GatedSlots, width=12, heads=3, max_length=64, causal=True, slots=6)


@pytest.mark.parametrize("case", released.CASES)
def test_it_answers_as_the_released_layer(case):
    mixer = built(width=released.WIDTH, heads=released.HEADS, slots=released.SLOTS,
                  route=released.CASES[case].get("topk"))  # fmt: skip
    keys = [key for key in STORED.files if key.startswith(case) and key.split()[1].isdigit()]
    named = dict(mixer.named_parameters())
    assert {key.split()[-1] for key in keys} == named.keys()
    with torch.no_grad():
        for key in keys:
            value = named[key.split()[-1]]
            value.copy_(released.drawn(*value.shape, seed=10 + int(key.split()[1])) / 2)
    x = released.tokens().requires_grad_()
    y = mixer(x, Layout())
    torch.testing.assert_close(y, torch.from_numpy(STORED[f"{case}: y"]), atol=1e-12, rtol=0)
    y.backward(released.direction())
    for key in (f"{case}: x", *keys):
        found = x.grad if key.endswith(" x") else named[key.split()[-1]].grad
        torch.testing.assert_close(found, torch.from_numpy(STORED[key]), atol=1e-12, rtol=0)


def test_one_slot_is_a_gated_average_of_values():
    """The softmax over one slot is 1, so that queries and keys have no effect."""
    mixer, x = built(slots=1), drawn(2, 9, 12)
    a = mixer.slot_map(x).sigmoid()[..., None] ** (1 / 8)
    v = F.silu(mixer.v_proj(x)).unflatten(-1, (3, 4))
    state, outputs = torch.zeros(2, 3, 4, dtype=x.dtype), []
    for t in range(9):
        state = a[:, t] * state + (1 - a[:, t]) * v[:, t]
        outputs.append(state.flatten(1))
    wanted = mixer.merged(torch.stack(outputs, 1), x)
    torch.testing.assert_close(mixer(x, Layout()), wanted)


def test_slots_that_forget_all_answer_with_the_last_value():
    mixer, x = built(gate_divisor=1e-9), drawn(2, 9, 12)
    mixer.slot_map.weight.data.zero_()  # a = (1/2)^(10^9) = 0: each slot holds the last token
    wanted = mixer.merged(F.silu(mixer.v_proj(x)), x)
    torch.testing.assert_close(mixer(x, Layout()), wanted)


def test_slots_of_one_number_hold_one_thing():
    """Equal gates make equal slots, and a softmax over equal slots is their mean: GLA of k = 1."""
    mixer, x = built(), drawn(2, 9, 12)
    with torch.no_grad():
        mixer.slot_map.weight.copy_(mixer.slot_map.weight[::6].repeat_interleave(6, 0))
    alone = built(slots=1)
    with torch.no_grad():
        for name, value in alone.named_parameters():
            value.copy_(mixer.get_parameter(name)[::6] if "slot" in name else
                        mixer.get_parameter(name))  # fmt: skip
    torch.testing.assert_close(mixer(x, Layout()), alone(x, Layout()))


@pytest.mark.parametrize("length", [1, 5, 33, 90])
def test_the_product_is_the_transpose_of_the_decayed_product(length):
    """sum p · slot_product(q) = sum q · decayed_product(p), for every p."""
    q, k = drawn(2, 3, length, 4), drawn(2, 3, length, 4, seed=1)
    s, g = drawn(2, 3, length, 5, seed=2), -drawn(2, 3, length, 5, seed=3).abs()
    g[:, :, length // 2] = -torch.inf
    p, state = drawn(2, 3, length, 5, seed=4), drawn(2, 3, 5, 4, seed=5)
    one, last = slot_product(q, k, s, g, state=state, chunk=16)
    other, same = decayed_product(p, s, k, g, state=state, chunk=16)
    torch.testing.assert_close((p * one).sum(), (q * other).sum())
    torch.testing.assert_close(last, same)


@pytest.mark.parametrize("length", [1, 6, 13])
def test_gradients_of_the_product_are_right(length):
    shape = 1, 2, length
    leaves = [drawn(*shape, 3), drawn(*shape, 3, seed=1), drawn(*shape, 5, seed=2),
              -drawn(*shape, 5, seed=3).abs(), drawn(1, 2, 5, 3, seed=4)]  # fmt: skip

    def run(q, k, s, g, state):
        return slot_product(q, k, s, g, state=state, chunk=4)

    assert torch.autograd.gradcheck(run, [leaf.requires_grad_() for leaf in leaves])


@pytest.mark.parametrize("strength", [1e-3, 1.0, 60.0])
def test_float32_is_finite_and_close(strength):
    """Of decays down to exp(-60) a token, some of them beside tokens that keep all."""
    shape, results = (2, 2, 150), []
    g = -strength * drawn(*shape, 16, seed=4).abs()
    g[:, :, ::5] *= 1e-3
    given = [drawn(*shape, 8), drawn(*shape, 8, seed=1), drawn(*shape, 16, seed=2), g,
             drawn(2, 2, 16, 8, seed=5)]  # fmt: skip
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        o, last = slot_product(*leaves[:-1], state=leaves[-1], chunk=64)
        direction = drawn(*o.shape, seed=9).to(dtype)
        results.append([o, last, *torch.autograd.grad([o, last], leaves, [direction, last])])
    for seen, wanted in zip(*results, strict=True):
        assert (seen - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_a_token_changes_as_many_slots_as_it_is_routed_to():
    mixer, x = built(route=2), drawn(1, 4, 12)
    g = mixer.log_decays(x)
    assert ((g < 0).sum(-1) == 2).all()
    rate = mixer.log_rate.exp() * F.softplus(mixer.decay_map(x) + mixer.step_bias)
    torch.testing.assert_close(g.sum(-1), -rate.transpose(1, 2), rtol=1e-8, atol=0)  # shares: 1
    whole = built(route=6)
    assert (whole.log_decays(x) < 0).all()


def test_noise_moves_routes_in_training_alone():
    x = drawn(2, 30, 12)
    for noise in (True, False):
        mixer = built(route=2, noise=noise)
        assert mixer.traits.training_noise is noise
        quiet = mixer.log_decays(x)
        assert torch.equal(quiet, mixer.log_decays(x))
        mixer.train()
        moved = mixer.log_decays(x)
        assert ((moved < 0).sum(-1) == 2).all()
        assert torch.equal(moved, quiet) is not noise
    assert not built().traits.training_noise


def test_gumbel_noise_draws_slots_in_proportion_to_what_a_softmax_gives():
    mixer = built(route=1, width=3).train()
    mixer.slot_map.weight.data.zero_()
    mixer.slot_map.weight.data[::6, 0] = 2.0
    x = torch.zeros(1, 20_000, 3, dtype=torch.float64)
    x[..., 0] = 1
    torch.manual_seed(0)
    share = (mixer.log_decays(x) < 0).double().mean((0, 1, 2))
    wanted = torch.tensor([2.0, 0, 0, 0, 0, 0], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(share, wanted, atol=0.01, rtol=0)


def test_it_is_as_large_as_is_said():
    d, m, h = 12, 6, 3
    mixer, raven = built(), built(route=4)
    assert sum(each.numel() for each in mixer.parameters()) == 4 * d * d + d * h * m + d
    wanted = 4 * d * d + d * h * m + d + d * h + 2 * h + 2 * d // h
    assert sum(each.numel() for each in raven.parameters()) == wanted
    for each in (mixer, raven):
        (state,) = each.initial_state(1, 99)
        assert state.numel() == 2 * h * m * (d // h)


def test_what_decides_about_memory_has_no_weight_decay():
    mixer = built(route=2)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    still = {names[each] for each, tuning in tunings(mixer) if tuning.weight_decay == 0}
    assert {"log_rate", "step_bias"} <= still


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "slots must be at least 1: got 0"),
        ({"route": 0}, "route must be at least 1, or null: got 0"),
        ({"route": 7}, "at most slots: got route=7, slots=6; set null to change all"),
        ({"noise": False}, "noise has no effect without route set to a number"),
        ({"route": 2, "gate_divisor": 4.0}, "gate_divisor has no effect under route=2"),
        ({"gate_divisor": 0.0}, "gate_divisor must be positive: got 0"),
        ({"chunk": 0}, "chunk must be at least 1: got 0"),
        ({"bidirectional": False}, "bidirectional has no effect"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        built(**options)

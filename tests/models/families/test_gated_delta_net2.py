"""Gated DeltaNet-2: the families that are cases of it, and its states, which may grow."""

import pytest
import torch

from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.families.gated_delta_net2 import GatedDeltaNet2
from lra.models.families.kimi_delta import KimiDelta
from lra.models.mixer import Layout
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.layer import Borders
from tests.attention import DIRECTIONS, builder, compare, drawn
from tests.literal import gated

WIDTH, HEADS = 12, 3


def with_one_gate(causal, seed=3):
    """Return a layer whose gates of erasing and writing are one number a head, and Kimi's."""
    ours = builder(GatedDeltaNet2, causal=causal, moved=0.3, chunk=8, seed=seed)()
    theirs = builder(KimiDelta, causal=causal, moved=0.3, chunk=8, seed=seed)()
    rates = theirs.beta_map.weight.data.repeat_interleave(WIDTH // HEADS, 0)
    ours.erase_map.weight.data, ours.write_map.weight.data = rates, rates.clone()
    shared = [name for name, _ in theirs.named_parameters() if name != "beta_map.weight"]
    state = theirs.state_dict()
    ours.load_state_dict({name: state[name] for name in shared}, strict=False)
    return ours, theirs, shared


@DIRECTIONS
def test_with_one_number_for_both_gates_it_is_kimi_delta(causal):
    ours, theirs, shared = with_one_gate(causal)
    x = drawn(2, 21, WIDTH).requires_grad_()
    found, wanted = ours(x, Layout()), theirs(x, Layout())
    compare(found, wanted, [x], atol=1e-12)
    for name in shared:  # each has its own copy
        there, here = (
            torch.autograd.grad(y.square().sum(), mixer.get_parameter(name), retain_graph=True)
            for y, mixer in ((wanted, theirs), (found, ours))
        )
        torch.testing.assert_close(here, there, atol=1e-11, rtol=1e-11)


@DIRECTIONS
def test_with_one_decay_a_head_besides_it_is_gated_delta_net(causal):
    ours, theirs, _ = with_one_gate(causal)
    net = builder(GatedDeltaNet, causal=causal, value_expansion=1, gate="none", chunk=8)()
    decays = ours.decay_up.weight.data[:: WIDTH // HEADS].repeat_interleave(WIDTH // HEADS, 0)
    biases = ours.step_bias.data[:: WIDTH // HEADS]
    ours.decay_up.weight.data = decays
    ours.step_bias.data = biases.repeat_interleave(WIDTH // HEADS)
    net.load_state_dict({n: p for n, p in theirs.state_dict().items() if "conv" in n}, strict=False)
    for name in ("q_proj", "k_proj", "v_proj", "beta_map"):
        getattr(net, name).weight.data = getattr(theirs, name).weight.data
    net.log_rate.data, net.step_bias.data = ours.log_rate.data, biases
    net.decay_map.weight.data = decays[:: WIDTH // HEADS] @ ours.decay_down.weight.data
    x = drawn(2, 21, WIDTH).requires_grad_()
    borders = Borders(None, None)
    found, wanted = (mixer.read(x, mixer.empty(2), borders)[0] for mixer in (ours, net))
    assert wanted.abs().max() > 1e-2
    compare(found, wanted, [x], atol=1e-12)


ERASING = [[0.0, 1.0], [1.0, 0.0]]
"""Which channel each of two alternating tokens erases."""
PAIR = [[0.909, 0.417], [0.412, 0.911]]
"""Their keys."""


def after_pairs(erase, dtype, tokens=64):
    """Return a state of (1, 1) after so many tokens that only erase; it does not decay."""
    k = torch.tensor(PAIR, dtype=dtype).repeat(tokens // 2, 1)[None, None]
    b = torch.tensor(erase, dtype=dtype).repeat(tokens // 2, 1)[None, None]
    nothing, g = torch.zeros(1, 1, tokens, 1, dtype=dtype), torch.zeros_like(k)
    inputs, start = (torch.zeros_like(k), b * k, k, nothing, g), torch.ones(1, 1, 2, 1, dtype=dtype)
    _, wanted = gated.delta_product(*(x.double() for x in inputs), state=start.double())
    for chunk in (16, 64):
        _, found = delta_product(*inputs, state=start, chunk=chunk)
        torch.testing.assert_close(found.double(), wanted, atol=0, rtol=1e-5)
    return float(wanted.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_that_does_not_decay_grows_with_two_alternating_tokens(dtype):
    """That is right: their product has an eigenvalue of 1.25, or 1.62 with gates up to 2."""
    assert after_pairs(ERASING, dtype) == pytest.approx(99.35, abs=0.01)
    doubled = [[2 * channel for channel in row] for row in ERASING]
    assert after_pairs(doubled, dtype) == pytest.approx(784_560, rel=1e-4)


@pytest.mark.parametrize("rate", [0.1, 1.0, 2.0])
def test_with_one_gate_for_all_channels_no_state_grows(rate):
    assert after_pairs([[rate, rate], [rate, rate]], torch.float64) <= 2**0.5 + 1e-6

"""DeltaNet, gated or not, against its papers token by token, and what its options do to a state."""

import itertools
import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.delta_net import DeltaNet
from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.mixer import Layout
from lra.models.ops.gated.delta_layer import DeltaRule, KeyNorm, StreamActivation
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.head_norm import Gate
from lra.models.ops.gated.layer import Borders
from lra.models.ops.gated.steps import step_biases
from tests.attention import builder, compare, drawn, streamed

LENGTH, WIDTH, HEADS = 21, 12, 3
OPTIONS = [
    {},
    {"convolution": None, "gate": Gate.sigmoid},
    {"negative_eigenvalues": True, "householders": 2, "value_expansion": 2},
    {
        "activation": StreamActivation.relu,
        "key_norm": KeyNorm.sum,
        "gate": Gate.none,
        "householders": 3,
    },
]
LOG_LINEAR = [{"log_linear": True}, {"log_linear": True, "negative_eigenvalues": True}]


def built(family, **options) -> DeltaRule:
    """Return a causal mixer of chunks of 8, with gates that differ from head to head."""
    return builder(family, causal=True, chunk=8)(**options)


def literal(mixer, x, *, householders=1, negative_eigenvalues=False, **options):
    """Return the layer's output, each state computed from the one before by the paper's formula.

    With levels there is a state for each. At token t those below the level of the last digit 1 of t
    are added into it.
    """
    activation = options.get("activation", StreamActivation.silu)
    streams = []
    for number, name in enumerate(["q_proj", "k_proj", "v_proj"]):
        y = mixer.get_submodule(name)(x)
        if len(mixer.convolutions):
            taps = mixer.convolutions[number].weight[:, None]
            y = F.conv1d(F.pad(y.mT, (3, 0)), taps, groups=y.shape[-1]).mT
        functions = {StreamActivation.silu: F.silu, StreamActivation.relu: F.relu}
        streams.append(functions[activation](y))
    q, k, v = streams
    beta = mixer.beta_map(x).sigmoid() * (2 if negative_eigenvalues else 1)
    alpha = torch.ones(*x.shape[:2], HEADS).double()
    if isinstance(mixer, GatedDeltaNet):
        steps = (1 + (mixer.decay_map(x) + mixer.step_bias).exp()).log()
        alpha = (-mixer.log_rate.exp() * steps).exp()
    width, weights = q.shape[-1] // HEADS, torch.ones(*x.shape[:2], HEADS, 1)
    if mixer.levels:
        mapped = mixer.level_map(x).unflatten(-1, (HEADS, -1)) * mixer.level_scale
        weights = (1 + mapped.exp()).log()

    def unit(key):
        if options.get("key_norm") == KeyNorm.sum:
            return key / (key.sum(-1, keepdim=True) + 1e-6)
        return key / (key.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    rows = []
    for b in range(len(x)):
        heads = []
        for h in range(HEADS):
            of_v = v.shape[-1] // HEADS // householders
            states, outputs = [torch.zeros(of_v, width).double()] * weights.shape[-1], []
            for t in range(x.shape[1]):
                states = [alpha[b, t, h] * state for state in states]
                level = (t & -t).bit_length() if mixer.levels else 0
                if level:
                    below, nothing = sum(states[:level]), torch.zeros_like(states[0])
                    states[: level + 1] = [*[nothing] * level, below]
                for j in range(householders):
                    key = unit(k[b, t].view(HEADS, householders, width)[h, j])
                    value = v[b, t].view(HEADS, householders, of_v)[h, j]
                    strength = beta[b, t].view(HEADS, householders)[h, j]
                    still = torch.eye(width).double() - strength * torch.outer(key, key)
                    states = [state @ still for state in states]
                    states[0] = states[0] + strength * torch.outer(value, key)
                query = unit(q[b, t].view(HEADS, width)[h]) * width**-0.5
                read = [w * state for w, state in zip(weights[b, t, h], states, strict=True)]
                o = sum(read) @ query
                outputs.append(o / (o.square().mean() + 1e-5).sqrt() * mixer.norm.weight)
            heads.append(torch.stack(outputs))
        rows.append(torch.cat(heads, -1))
    y = torch.stack(rows)
    if mixer.norm.gate != Gate.none:
        gate = mixer.gate_proj(x)
        y = y * (F.silu(gate) if mixer.norm.gate == Gate.silu else gate.sigmoid())
    return mixer.out_proj(y)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        *itertools.product([DeltaNet, GatedDeltaNet], OPTIONS),
        *itertools.product([GatedDeltaNet], LOG_LINEAR),
    ],
)
def test_it_is_the_paper_token_by_token(family, options):
    mixer = built(family, **options)
    if mixer.levels:
        torch.nn.init.normal_(mixer.level_scale)
    x = drawn(2, LENGTH, WIDTH).requires_grad_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x, **options)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10)


def test_log_linear_is_the_same_from_states():
    """Cut anywhere; 64 tokens have a state at each of 6 levels, and 7 weights."""
    mixer, x = built(GatedDeltaNet, log_linear=True), drawn(2, LENGTH, WIDTH)
    outputs, (state, place, *_) = streamed(mixer, x, [6, 1, 1, 13], 64)
    torch.testing.assert_close(outputs, mixer(x, Layout()), atol=1e-10, rtol=0)
    assert state.shape == (2, HEADS, 6, 4, 8)
    assert place.tolist() == [LENGTH, LENGTH]
    plain = built(GatedDeltaNet)
    more = sum(p.numel() for p in mixer.parameters()) - sum(p.numel() for p in plain.parameters())
    assert more == WIDTH * HEADS * 7 + HEADS * 7


@pytest.mark.parametrize("causal", [False, True])
def test_weights_of_one_are_gated_deltanet(causal):
    """softplus(log(e - 1)) is 1: a scale of ones, and a map that gives it."""
    mixer = built(GatedDeltaNet, log_linear=True, causal=causal, convolution=None)
    plain = built(GatedDeltaNet, causal=causal, convolution=None)
    mixer.load_state_dict(plain.state_dict(), strict=False)
    x = torch.cat((drawn(2, LENGTH, WIDTH - 1), torch.ones(2, LENGTH, 1).double()), -1)
    mixer.level_map.weight.data.zero_()[:, -1] = math.log(math.e - 1)
    torch.testing.assert_close(mixer(x, Layout()), plain(x, Layout()), atol=1e-12, rtol=0)


def test_both_ends_are_added_before_the_norm():
    mixer, x = built(DeltaNet, causal=False), drawn(2, LENGTH, WIDTH)
    nothing = mixer.empty(2)
    ends = [mixer.read(row, nothing, Borders(None, None))[0] for row in (x, x.flip(1))]
    wanted = mixer.merged(ends[0] + ends[1].flip(1), x)
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)


def keys(length):
    return F.normalize(drawn(1, 1, length, 8, seed=1), dim=-1)


def test_orthonormal_keys_store_values_exactly():
    k = torch.eye(8).double()[None, None]
    v, g = drawn(1, 1, 8, 5, seed=2), torch.zeros(1, 1, 8).double()
    _, state = delta_product(k, k, k, v, g)
    torch.testing.assert_close(state[0, 0], v[0, 0], atol=1e-14, rtol=0)
    overwritten, _ = delta_product(
        k[:, :, :1], k[:, :, :1], k[:, :, :1], -v[:, :, :1], g[:, :, :1], state=state
    )
    torch.testing.assert_close(overwritten[0, 0, 0], -v[0, 0, 0], atol=1e-14, rtol=0)


def test_a_beta_of_two_reflects_and_two_reflections_change_nothing():
    k, state = keys(1).expand(1, 1, 2, 8), drawn(1, 1, 8, 5, seed=3)
    nothing, g = torch.zeros(1, 1, 2, 5).double(), torch.zeros(1, 1, 2).double()
    product = partial(delta_product, g=g)
    _, twice = product(k, k, 2 * k, nothing, state=state)
    torch.testing.assert_close(twice, state, atol=1e-14, rtol=0)
    _, once = delta_product(*(each[:, :, :1] for each in (k, k, 2 * k, nothing, g)), state=state)
    along = (k[0, 0, 0] @ state[0, 0], k[0, 0, 0] @ once[0, 0])
    torch.testing.assert_close(along[1], -along[0], atol=1e-14, rtol=0)


def test_steps_are_drawn_between_the_shortest_and_the_longest():
    steps = F.softplus(step_biases(4000).double())
    assert 0.001 <= steps.min() < 0.00102
    assert 0.098 < steps.max() <= 0.1000001
    assert abs(steps.log().mean() - math.log(0.01)) < 0.1


def test_levels_are_of_tokens_that_write_once():
    with pytest.raises(ValueError, match="weighs what a token writes once: got householders=2"):
        built(GatedDeltaNet, log_linear=True, householders=2)

"""Hyena against its equations and the released layer: values, gradients, streams."""

import math
import re

import numpy as np
import pytest
import torch

from lra.models.families.hyena import Hyena
from lra.models.mixer import Layout, Site
from lra.models.state import size_bytes
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, compare, drawn, streamed
from tests.literal.convolutions import (
    implicit,
    implicit_positions,
    long_convolution,
    short_convolution,
)
from tests.models.families.released import long_convolutions as released

WIDTH, LONGEST, LENGTH = 6, 20, 13
SITE = {"width": WIDTH, "heads": 2, "max_length": LONGEST}
CASES = pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": 3, "bands": 3, "frequency": 10.0, "shift": 0.1, "convolution": 1},
        {"order": 4, "inner_layers": 0, "slow_decay": 1.0, "train_positions": False},
    ],
)
STORED = np.load(released.OUTPUTS)
built = builder(Hyena, **SITE, filter_width=8)
"""Of a small network."""


def equations(mixer, options, x):
    """Compute a layer from its parameters, token by token."""
    own, order = mixer.kernel, options.get("order", 2)
    ends = [
        math.log(options.get("target", 0.01)) / options.get(name, share)
        for name, share in (("slow_decay", 1.5), ("fast_decay", 0.3))
    ]
    count = (order - 1) * WIDTH
    rates = [ends[0] + (ends[1] - ends[0]) * k / (count - 1) for k in range(count)]
    rates = torch.tensor(rates, dtype=torch.float64)
    layers = [(layer.weight, layer.bias) for layer in own.layers]
    shift = options.get("shift", 0.0)
    kernels = [
        implicit(own.positions, layers, own.frequency, last, (rates, shift))[:, : x.shape[1]]
        for last in own.last.weight.split(count)
    ]
    u = short_convolution(mixer.in_proj(x), mixer.taps, mixer.taps_bias)
    *gates, v = u.mT.split(WIDTH, dim=1)
    for step, gate in enumerate(reversed(gates[1:])):
        v = v * gate
        here = [kernel[step * WIDTH : (step + 1) * WIDTH] for kernel in kernels]
        v = long_convolution(v, *here) + mixer.skip[step, :, None] * v
    return mixer.out_proj((v * gates[0]).mT)


@CASES
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, LENGTH, LONGEST])
def test_it_is_its_equations(options, bidirectional, length):
    mixer = built(bidirectional=bidirectional, **options)
    x = drawn(2, length, WIDTH).requires_grad_()
    wanted = equations(mixer, options, x)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("case", released.HYENA)
@pytest.mark.parametrize("length", released.LENGTHS)
def test_it_is_the_released_layer(case, length):
    given = released.HYENA[case]
    mixer = built(
        order=given["order"],
        filter_width=given["filter_order"],
        bands=(given.get("emb_dim", 3) - 1) // 2,
        frequency=float(given.get("w", 1)),
        shift=given.get("shift", 0.0),
        causal=True,
    )
    theirs = {
        "in_proj.weight": "in_proj.weight", "in_proj.bias": "in_proj.bias",
        "out_proj.weight": "out_proj.weight", "out_proj.bias": "out_proj.bias",
        "short_filter.weight": "taps", "short_filter.bias": "taps_bias",
        "filter_fn.bias": "skip", "filter_fn.implicit_filter.1.freq": "kernel.frequency",
        "filter_fn.implicit_filter.6.weight": "kernel.last.weight",
    }  # fmt: skip
    for layer in range(3):
        for kind in ("weight", "bias"):
            name = f"filter_fn.implicit_filter.{2 * layer}.{kind}"
            theirs[name] = f"kernel.layers.{layer}.{kind}"
    own = dict(mixer.named_parameters())
    stored = f"hyena {case}, {length}: "
    shapes = {name.removeprefix(stored): STORED[name].shape for name in STORED if stored in name}
    assert shapes.keys() == {"y", "x", "filter_fn.pos_emb.z", *theirs}
    with torch.no_grad():
        for name, here in theirs.items():
            own[here].copy_(released.weight(name, shapes[name]).view_as(own[here]))
        table = mixer.kernel.positions
        table.copy_(implicit_positions(LONGEST, table.shape[1] // 2))
    x = released.tokens(length).requires_grad_()
    y = mixer(x, Layout())
    leaves = {"x": x, "filter_fn.pos_emb.z": mixer.kernel.positions}
    leaves |= {name: own[here] for name, here in theirs.items()}
    gradients = torch.autograd.grad(y, [*leaves.values()], released.direction(length))
    for name, value in {"y": y, **dict(zip(leaves, gradients, strict=True))}.items():
        wanted = torch.from_numpy(STORED[stored + name]).view_as(value)
        torch.testing.assert_close(value.detach(), wanted, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_the_table_starts_as_written(bands):
    table = built(bands=bands).kernel.positions
    torch.testing.assert_close(table, implicit_positions(LONGEST, bands), atol=2e-6, rtol=0)


@CASES
def test_a_stream_is_one_pass_and_holds_as_much_as_is_said(options):
    mixer, x = built(causal=True, **options), drawn(2, LENGTH, WIDTH)
    outputs, state = streamed(mixer, x, [2, 1, 1, LENGTH - 4], LENGTH)
    torch.testing.assert_close(outputs, mixer(x, Layout()), atol=1e-10, rtol=0)
    order, taps = options.get("order", 2), options.get("convolution", 3)
    inputs = (order - 1) * (LENGTH - 1) + (taps - 1) * (order + 1)
    assert size_bytes(state) == 8 * 2 * WIDTH * inputs


@pytest.mark.parametrize("memory", [1, 3])
def test_a_short_memory_shows_the_last_inputs_of_each_convolution(memory):
    mixer, x = built(causal=True, convolution=1), drawn(1, 50, WIDTH)
    assert not mixer.traits.summarises
    outputs, _ = streamed(mixer, x, [27, 1, 22], memory)  # further than the kernel
    wanted = mixer(x[:, -memory:], Layout())[:, -1]
    torch.testing.assert_close(outputs[:, -1], wanted, atol=1e-10, rtol=0)
    assert built(causal=True).traits.summarises
    assert built(causal=True, convolution=1, order=3).traits.summarises


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("sides", [1, 2])
def test_parameters_are_those_of_its_paper(order, sides):
    w, e, d = 8, 5, WIDTH
    mixer = built(order=order, bands=2, bidirectional=sides == 2)
    network = e * w + w + 2 * (w**2 + w) + w + sides * w * d * (order - 1) + LONGEST * e
    maps = (order + 1) * (d**2 + d) + 4 * (order + 1) * d + d**2 + d
    wanted = maps + network + d * (order - 1)
    assert sum(parameter.numel() for parameter in mixer.parameters()) == wanted


def test_parameters_are_as_many_as_the_released_layer_has():
    mixer = Hyena(Site(width=16, heads=1, max_length=64))
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 11_152


def test_half_precision_rounds_no_position():
    mixer = built(causal=True).bfloat16()
    assert {each.dtype for each in mixer.kernel.parameters()} == {torch.float32}
    assert mixer(drawn(1, LENGTH, WIDTH).bfloat16(), Layout()).dtype == torch.bfloat16


def test_the_network_learns_without_decay_and_its_table_slowly():
    mixer = built(rate=0.5, rate_of_positions=0.25)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    special = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    for name, tuning in special.items():
        if name == "kernel.positions":
            assert tuning == Tuning(0.25, 0.0, None, matrix=False)
        elif name.startswith("kernel."):
            assert (tuning.learning_rate_scale, tuning.weight_decay) == (0.5, 0.0)
        else:
            assert (tuning.learning_rate_scale, tuning.weight_decay) == (1.0, None)
    assert not special["taps"].matrix
    assert not special["skip"].matrix
    assert special["in_proj.weight"].matrix


def test_more_tokens_than_lags_are_refused():
    mixer, message = built(causal=True), re.escape(f"up to {LONGEST} tokens: got {LONGEST + 1}")
    with pytest.raises(ValueError, match=message):
        mixer(drawn(1, LONGEST + 1, WIDTH), Layout())
    with pytest.raises(ValueError, match=message):
        mixer.initial_state(1, LONGEST + 1)

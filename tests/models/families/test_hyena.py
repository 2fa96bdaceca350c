"""Hyena against the released layer, and how it learns."""

import numpy as np
import pytest
import torch

from lra.models.families.hyena import Hyena
from lra.models.mixer import Layout, Site
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder
from tests.literal.convolutions import (
    implicit_positions,
)
from tests.models.families.released import long_convolutions as released

WIDTH, LONGEST = 6, 20
SITE = {"width": WIDTH, "heads": 2, "max_length": LONGEST}
STORED = np.load(released.OUTPUTS)
built = builder(Hyena, **SITE, filter_width=8)
"""Of a small network."""


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


def test_parameters_are_as_many_as_the_released_layer_has():
    mixer = Hyena(Site(width=16, heads=1, max_length=64))
    assert sum(parameter.numel() for parameter in mixer.parameters()) == 11_152


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

"""S5 against its recurrence, token by token: values, gradients, states, first values."""

import math

import pytest
import torch

from lra.models.families.s5 import S5, GatedMixing
from lra.models.mixer import Layout, Site
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn

SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13


built = builder(S5, **SITE, states=8, blocks=2)


@pytest.mark.parametrize(
    ("depth", "width", "states", "total"),
    [
        pytest.param(8, 128, 16, 184_512, id="listops"),
        pytest.param(6, 256, 192, 1_285_824, id="text"),
        pytest.param(6, 128, 256, 693_504, id="retrieval and pathx"),
        pytest.param(6, 512, 384, 5_127_552, id="image"),
        pytest.param(6, 192, 256, 1_112_832, id="pathfinder"),
    ],
)
def test_parameters_are_those_of_its_stacks(depth, width, states, total):
    terms = {
        "dynamics.real": states // 2,
        "dynamics.frequency": states // 2,
        "dynamics.entry": states * width,
        "dynamics.log_step": states // 2,
        "readout": 2 * states * width,
        "skip": width,
        "out_proj.weight": width**2,
        "out_proj.bias": width,
    }
    with torch.device("meta"):
        mixer = S5(Site(width=width, heads=1, max_length=8), states=states, blocks=1)
    assert {name: part.numel() for name, part in mixer.named_parameters()} == terms
    assert depth * (sum(terms.values()) + 2 * width) == total


def test_steps_are_log_uniform_between_their_ends():
    steps = built(states=1024, blocks=64, step_min=0.01, step_max=0.04).dynamics.log_step
    assert math.log(0.01) - 1e-6 <= steps.min() < math.log(0.011)
    assert math.log(0.038) < steps.max() <= math.log(0.04) + 1e-6
    assert abs(steps.mean() - math.log(0.02)) < 0.05


def test_dropout_falls_on_channels_of_a_row():
    mixer = built(dropout=0.5, mixing=GatedMixing.none).train()
    y = mixer(drawn(3, LENGTH, 6), Layout())
    dropped = y.eq(0)
    assert dropped.any()
    assert dropped.eq(dropped[:, :1]).all()
    assert not dropped.all()


SLOW = Tuning(learning_rate_scale=0.2, weight_decay=0.0, matrix=False)


@pytest.mark.parametrize(
    ("options", "entry", "step"),
    [
        ({}, SLOW, SLOW),
        ({"fast_step": True}, SLOW, Tuning()),
        ({"decay_input": True}, Tuning(learning_rate_scale=0.2), SLOW),
        ({"fast_input": True}, Tuning(), SLOW),
    ],
)
def test_parameters_learn_by_the_sets_of_the_released_code(options, entry, step):
    mixer = built(rate=0.2, **options)
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    found = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    assert found["dynamics.real"] == found["dynamics.frequency"] == SLOW
    assert (found["dynamics.entry"], found["dynamics.log_step"]) == (entry, step)
    assert found["readout"] == found["skip"] == found["out_proj.weight"] == Tuning()

"""Differential attention against its paper, written out."""

import math

import pytest
import torch

from lra.models.families.differential import Differential
from lra.models.mixer import Positions, Site
from tests.attention import builder

LENGTH, WIDTH, HEADS = 13, 24, 3
built = builder(Differential, width=WIDTH, depth=4, moved=0.3)


def test_lambda_starts_near_its_place_in_the_depth():
    site = Site(width=512, heads=4, max_length=9, layer=2, depth=4)
    torch.manual_seed(0)
    mixer = Differential(site)
    wanted = 0.8 - 0.6 * math.exp(-0.6)
    assert abs(mixer.core.attend.strength(torch.float64).item() - wanted) < 0.3
    still = Differential(site, deviation=0.0)
    assert still.core.attend.strength(torch.float64).item() == pytest.approx(wanted)


def test_positions_that_add_to_scores_are_not_offered():
    mixer = Differential(Site(width=WIDTH, heads=HEADS, max_length=9))
    assert mixer.traits.positions == {"rotary", "position_infused"}
    assert Positions.alibi.value not in mixer.traits.positions

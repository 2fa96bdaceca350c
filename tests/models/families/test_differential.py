"""Where differential attention starts."""

import math

import pytest
import torch

from lra.models.families.differential import Differential
from lra.models.mixer import Site


def test_lambda_starts_near_its_place_in_the_depth():
    site = Site(width=512, heads=4, max_length=9, layer=2, depth=4)
    torch.manual_seed(0)
    mixer = Differential(site)
    wanted = 0.8 - 0.6 * math.exp(-0.6)
    assert abs(mixer.core.attend.strength(torch.float64).item() - wanted) < 0.3
    still = Differential(site, deviation=0.0)
    assert still.core.attend.strength(torch.float64).item() == pytest.approx(wanted)

"""YOSO without draws."""

import torch

from lra.models.families.yoso import Yoso, YosoEstimator
from tests.attention import builder

built = builder(Yoso)


def test_an_expectation_has_no_planes():
    plain = built(mode=YosoEstimator.expectation)
    assert not [*plain.buffers()]
    plain.after_step(3, torch.Generator())

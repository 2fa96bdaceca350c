"""YOSO without draws."""

from functools import partial

import torch

from lra.models.families.yoso import Yoso, YosoEstimator
from tests import attention
from tests.attention import builder

compare = partial(attention.compare, atol=1e-12, rtol=1e-11, looser=10)


built = builder(Yoso)


def test_an_expectation_has_no_planes():
    plain = built(mode=YosoEstimator.expectation)
    assert not [*plain.buffers()]
    plain.after_step(3, torch.Generator())

"""Lambda layers against the released package."""

import numpy as np
import pytest
import torch

from lra.models.families.lambda_layer import LambdaLayer
from lra.models.mixer import Layout, Site
from tests.models.families.released import lambda_layer as released

STORED = np.load(released.OUTPUTS)


@pytest.mark.parametrize("case", released.CASES)
def test_equals_the_released_package(case):
    depth = released.CASES[case]
    site = Site(width=released.WIDTH, heads=released.HEADS, max_length=released.LENGTH)
    mixer = LambdaLayer(
        site, key_width=released.KEY_WIDTH, intra_depth=depth, window=released.WINDOW, norm="none"
    ).double()
    names = ("to_q", "to_k", "to_v", "offsets")
    leaves = [mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight, mixer.offsets]
    with torch.no_grad():
        for leaf, name in zip(leaves, names, strict=True):
            leaf.copy_(released.weights(depth)[name])
    x = released.tokens().requires_grad_()
    y = mixer(x, Layout())
    gradients = torch.autograd.grad(y, [x, *leaves], released.direction())
    for name, value in zip(("y", "x", *names), (y.detach(), *gradients), strict=True):
        np.testing.assert_allclose(value, STORED[f"{case}: {name}"], atol=1e-12, err_msg=name)

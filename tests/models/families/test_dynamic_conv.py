"""DynamicConv against its sum over taps, fairseq and LightConv."""

import pytest
import torch

from lra.models.families.dynamic_conv import DynamicConv
from lra.models.mixer import Layout
from tests.attention import DIRECTIONS, compare, drawn
from tests.models.families.convolution_cases import (
    LENGTH,
    as_released,
    built,
    gated,
    literal,
)
from tests.models.families.released import convolutions as released


@DIRECTIONS
@pytest.mark.parametrize("kernel", [2, 5, 6])
@pytest.mark.parametrize("inner", [None, 10])
def test_it_is_the_sum_over_taps(causal, kernel, inner):
    mixer = built(DynamicConv, causal=causal, kernel=kernel, inner_width=inner)
    x = drawn(2, LENGTH, 6)
    x.requires_grad_()
    z = gated(mixer, x).transpose(1, 2).flatten(2)
    weight = mixer.kernel_proj.weight.view(mixer.heads, kernel, inner or 6)
    logits = torch.einsum("bld,htd->bhlt", z, weight)
    left = kernel - 1 if causal else (kernel - 1) // 2
    wanted = literal(mixer, x, logits.softmax(-1), left)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()])


@pytest.mark.parametrize("case", [case for case in released.CASES if case.startswith("dynamic")])
def test_it_is_the_released_convolution(case):
    as_released(DynamicConv, case)

"""DynamicConv against its sum over taps, fairseq and LightConv."""

import pytest
import torch

from lra.models.families.dynamic_conv import DynamicConv
from lra.models.families.light_conv import LightConv
from lra.models.mixer import Layout
from tests.attention import drawn
from tests.models.families.convolution_cases import (
    LENGTH,
    as_released,
    built,
    equal_with_gradients,
    gated,
    literal,
)
from tests.models.families.released import convolutions as released

BOTH = pytest.mark.parametrize("causal", [False, True])


@BOTH
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
    equal_with_gradients(mixer(x, Layout()), wanted, [x, *mixer.parameters()])


@pytest.mark.parametrize("case", [case for case in released.CASES if case.startswith("dynamic")])
def test_it_is_the_released_convolution(case):
    as_released(DynamicConv, case)


def test_kernels_that_no_token_changes_are_those_of_light_conv():
    dynamic, light = (built(family, causal=True) for family in (DynamicConv, LightConv))
    light.load_state_dict(dynamic.state_dict(), strict=False)
    # A channel that the gate makes 1 at every token carries the logits.
    x = drawn(2, LENGTH, 6)
    with torch.no_grad():
        for mixer in (dynamic, light):
            mixer.in_proj.weight[0] = mixer.in_proj.weight[6] = 0
            mixer.in_proj.bias[0], mixer.in_proj.bias[6] = 1, 100
        dynamic.kernel_proj.weight[:, 1:] = 0
        light.weight.copy_(dynamic.kernel_proj.weight[:, 0].view(2, 1, 5))
    torch.testing.assert_close(dynamic(x, Layout()), light(x, Layout()), atol=1e-12, rtol=0)

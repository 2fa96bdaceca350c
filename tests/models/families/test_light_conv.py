"""LightConv against its sum over taps, fairseq and a depthwise convolution."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.light_conv import LightConv
from lra.models.mixer import Layout, Site
from tests.attention import DIRECTIONS, compare, drawn
from tests.models.families.convolution_cases import (
    LENGTH,
    SITE,
    as_released,
    built,
    literal,
)
from tests.models.families.released import convolutions as released

KERNELS = pytest.mark.parametrize("kernel", [1, 2, 5, 6])


def logits(mixer: LightConv, x: torch.Tensor) -> torch.Tensor:
    return mixer.weight[None].expand(len(x), mixer.heads, x.shape[1], mixer.taps)


@DIRECTIONS
@KERNELS
def test_it_is_the_sum_over_taps(causal, kernel):
    mixer, x = built(LightConv, causal=causal, kernel=kernel), drawn(2, LENGTH, 6)
    x.requires_grad_()
    left = kernel - 1 if causal else (kernel - 1) // 2
    wanted = literal(mixer, x, logits(mixer, x).softmax(-1), left)
    leaves = [x, *mixer.parameters()][: None if kernel > 1 else -1]
    compare(mixer(x, Layout()), wanted, leaves)


@DIRECTIONS
@pytest.mark.parametrize("inner", [4, 10])
def test_the_convolution_may_have_a_width_of_its_own(causal, inner):
    mixer, x = built(LightConv, causal=causal, inner_width=inner), drawn(2, LENGTH, 6)
    left = 4 if causal else 2
    wanted = literal(mixer, x, logits(mixer, x).softmax(-1), left)
    compare(mixer(x, Layout()), wanted, [*mixer.parameters()])
    with pytest.raises(ValueError, match=f"got heads=2, inner_width={inner + 1}; set model.mixer"):
        built(LightConv, inner_width=inner + 1)


@pytest.mark.parametrize("case", [case for case in released.CASES if case.startswith("light")])
def test_it_is_the_released_convolution(case):
    as_released(LightConv, case)


def test_taps_of_every_token_are_dropped_by_themselves():
    mixer, x = built(LightConv, attention_dropout=0.5).train(), drawn(1, LENGTH, 6)
    torch.manual_seed(7)
    found = mixer(x, Layout())
    torch.manual_seed(7)
    taps = F.dropout(logits(mixer, x).softmax(-1), 0.5)
    torch.testing.assert_close(found, literal(mixer, x, taps, 2), atol=1e-12, rtol=0)


def test_without_a_gate():
    mixer, x = built(LightConv, glu=False, kernel=1), drawn(2, LENGTH, 6)
    wanted = mixer.out_proj(mixer.in_proj(x))
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)


def test_layers_have_kernels_of_their_own():
    sites = [Site(**SITE, layer=layer, depth=3) for layer in range(3)]
    assert [LightConv(site, kernel=[3, 7, 15]).taps for site in sites] == [3, 7, 15]

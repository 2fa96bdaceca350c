"""The window against a dense band: outputs, gradients, passes."""

import pytest
import torch

from lra.models.families.sliding_window import SlidingWindow
from lra.models.mixer import Layout, Positions
from lra.models.ops.banded.sliding_window import best_block
from tests.attention import builder, drawn, streamed

built = builder(SlidingWindow)


@pytest.mark.parametrize("layer", [0, 1])
def test_each_layer_has_its_own_window(layer: int) -> None:
    core = built(layer=layer, depth=2, window=[16, 200]).core
    assert (core.window, core.block) == ((16, 32), (200, 64))[layer]
    assert best_block(128) == 64


@pytest.mark.parametrize("positions", [Positions.none, Positions.alibi])
@pytest.mark.parametrize("dilation", [1, 3])
def test_a_stream_is_one_pass_and_distances_are_of_tokens(dilation: int, positions) -> None:
    mixer = built(causal=True, window=[5], dilation=[dilation], positions=positions)
    x = drawn(2, 30, 12)
    for cuts in ([1] * 30, [2, 1, 27]):
        found, _ = streamed(mixer, x, cuts, 30)
        torch.testing.assert_close(found, mixer(x, Layout()), atol=1e-12, rtol=0)

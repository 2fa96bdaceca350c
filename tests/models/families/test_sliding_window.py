"""The window of each layer."""

import pytest

from lra.models.families.sliding_window import SlidingWindow
from lra.models.ops.banded.sliding_window import best_block
from tests.attention import builder

built = builder(SlidingWindow)


@pytest.mark.parametrize("layer", [0, 1])
def test_each_layer_has_its_own_window(layer: int) -> None:
    core = built(layer=layer, depth=2, window=[16, 200]).core
    assert (core.window, core.block) == ((16, 32), (200, 64))[layer]
    assert best_block(128) == 64

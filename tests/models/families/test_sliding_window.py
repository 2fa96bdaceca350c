"""The window against a dense band: outputs, gradients, passes."""

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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0; for none choose model=identity"):
        built(window=[0])
    with pytest.raises(ValueError, match="block must be at least 1"):
        built(block=0)

"""The lower bounds of HGRN2."""

import torch

from lra.models.families.hgrn2 import HGRN2
from lra.models.mixer import Site


def test_lower_bounds_grow_from_nothing_in_equal_steps_and_are_shared():
    shared, layers = {}, []
    for layer in range(4):
        site = Site(
            width=12, heads=3, max_length=9, causal=True, layer=layer, depth=4, shared=shared
        )
        layers.append(HGRN2(site))
    assert layers[0].bounds is None
    assert layers[1].bounds is layers[3].bounds
    for layer in (1, 2, 3):
        wanted = torch.full((12,), layer / 4)
        torch.testing.assert_close(layers[layer].bounds(layer, torch.float32), wanted)

"""Mamba-2 token by token, and Hydra as the matrix of its paper."""

import pytest

from lra.models.families.mamba2 import Mamba2
from lra.models.mixer import Unsupported
from tests.attention import builder

LENGTH, WIDTH, HEADS = 21, 12, 4
built = builder(Mamba2, heads=HEADS, causal=True, chunk=8, states=5)


def test_a_causal_hydra_is_refused():
    with pytest.raises(Unsupported, match="quasi_separable sees both sides"):
        built(quasi_separable=True, convolution=7)

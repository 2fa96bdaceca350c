"""DeltaNet, gated or not, against its papers token by token, and what its options do to a state."""

import pytest

from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.ops.gated.delta_layer import DeltaRule
from tests.attention import builder

LENGTH, WIDTH, HEADS = 21, 12, 3


def built(family, **options) -> DeltaRule:
    """Return a causal mixer of chunks of 8, with gates that differ from head to head."""
    return builder(family, causal=True, chunk=8)(**options)


def test_levels_are_of_tokens_that_write_once():
    with pytest.raises(ValueError, match="weighs what a token writes once: got householders=2"):
        built(GatedDeltaNet, log_linear=True, householders=2)

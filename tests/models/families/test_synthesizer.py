"""What of synthetic attention is fused."""

import pytest

from lra.models.families.synthesizer import Component
from lra.models.ops.synthetic import fused_attention
from tests.attention import drawn
from tests.models.families.synthesizer_forms import (
    HEADS,
    WIDTH,
    built,
)


def test_what_is_no_inner_product_is_not_fused():
    mixer = built(Component.random, Component.dot)
    assert not mixer.fused
    with pytest.raises(ValueError, match="products of queries and keys"):
        fused_attention(mixer.logits(drawn(1, 5, WIDTH)), drawn(1, HEADS, 5, 4))

"""The slots that Luna's layers share."""

import pytest
from torch import nn

from lra.models.families.luna import Luna
from tests.attention import builder

built = builder(Luna, slots=5, moved=0.3)


def test_layers_that_share_slots_have_as_many():
    shared: dict[str, nn.Module] = {}
    built(shared=shared)
    with pytest.raises(ValueError, match="got slots=7 in layer 0, but slots=5 in an earlier layer"):
        built(shared=shared, slots=7)
    assert not built().traits.reversible
    assert built(causal=True).traits.reversible

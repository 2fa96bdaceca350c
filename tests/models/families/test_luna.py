"""The slots that Luna's layers share."""

import pytest
from torch import nn

from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.families.luna import Luna
from tests.attention import builder

built = builder(Luna, slots=5, moved=0.3)


def stack(depth: int = 3, *, checkpointing: bool = False, **options) -> Stack:
    shared: dict[str, nn.Module] = {}
    mixers = [built(seed=i, layer=i, depth=depth, shared=shared, **options) for i in range(depth)]
    frame = {"width": 12, "feed_forward": FeedForward.none, "feed_forward_width": 12}
    blocks = [TransformerBlock(mixer, dropout=0.0, **frame) for mixer in mixers]
    return Stack(blocks, width=12, checkpointing=checkpointing).double()


def test_layers_that_share_slots_have_as_many():
    shared: dict[str, nn.Module] = {}
    built(shared=shared)
    with pytest.raises(ValueError, match="got slots=7 after 5 in a layer before; use one number"):
        built(shared=shared, slots=7)
    assert not built().traits.reversible
    assert built(causal=True).traits.reversible

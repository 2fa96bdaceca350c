"""Layers that stay and layers that get weights of their own: by their outputs."""

import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression.layers import keep_layers, unshare
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported

FACTS = TaskFacts(head=Head.language_modelling, vocabulary=9, classes=9, max_length=6)
TOKENS = torch.arange(12).view(2, 1, 6) % 9


def model_of(mixer=SoftmaxAttention, depth=4, **options):
    config = BackboneConfig(
        **{"width": 8, "heads": 2, "depth": depth, "feed_forward_width": 8, **options}
    )
    return Backbone(config, FACTS, [mixer], seed=3).double().eval()


def test_the_last_layer_of_each_part_stays():
    model, other = model_of(), model_of(depth=2)
    state = {name.replace("blocks.1", "blocks.0").replace("blocks.3", "blocks.1"): value
             for name, value in model.state_dict().items()
             if "blocks.0" not in name and "blocks.2" not in name}  # fmt: skip
    other.load_state_dict(state)
    keep_layers(model, 2)
    assert torch.equal(model.predict(TOKENS)[0], other.predict(TOKENS)[0])
    assert model.config == other.config
    continued = model.predict(TOKENS, None, model.initial_state(2, 6))[0]
    torch.testing.assert_close(continued, other.predict(TOKENS)[0])
    for layers in (0, 3, 5):
        with pytest.raises(ValueError, match="choose 1 or 2"):
            keep_layers(model_of(), layers)
    with pytest.raises(Unsupported, match="layer_groups=null"):
        keep_layers(model_of(layer_groups=2), 2)


def test_copies_are_the_same_function_and_free():
    model = model_of(AdaptiveSpan, layer_groups=2, positions="none")
    before = model.predict(TOKENS)[0]
    penalties = len(model.penalised)
    unshare(model)
    assert torch.equal(model.predict(TOKENS)[0], before)
    assert len({*model.stack.blocks}) == 4
    assert len(model.penalised) == 2 * penalties
    with torch.no_grad():
        model.stack.blocks[0].mixer.v_proj.weight.zero_()
    assert float(model.stack.blocks[1].mixer.v_proj.weight.detach().abs().max()) > 0
    with pytest.raises(Unsupported, match="layer_groups=1"):
        unshare(model)

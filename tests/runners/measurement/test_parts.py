"""What parts of a model cost adds up to the whole, however layers share their parameters."""

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.contract.counting import count_operations
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.funnel import Funnel
from lra.models.families.identity import Identity
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.transformer_xl import TransformerXL
from lra.runners.measurement.parts import cost_by_part

LENGTH, VOCABULARY = 24, 11
MODELS = {
    "plain": (SoftmaxAttention, Head.classification, {}),
    "pairs": (SoftmaxAttention, Head.pair, {"pooling": "mean"}),
    "one group": (SoftmaxAttention, Head.masked_modelling, {"layer_groups": 1}),
    "two streams, in pieces": (
        SoftmaxAttention, Head.classification,
        {"residual": "reversible", "feed_forward_chunks": 3},
    ),
    "biases of all layers": (
        TransformerXL, Head.language_modelling, {"positions": "transformer_xl", "memory": 8},
    ),
    "vectors of all layers": (AdaptiveSpan, Head.language_modelling, {"positions": "none"}),
    "pooled and used again": (
        Funnel, Head.masked_modelling,
        {"pool_blocks": 2, "pool_repeats": [1, 2], "pool_layers": [2, 2], "positions": "learned"},
    ),
    "gated": (SoftmaxAttention, Head.classification, {"feed_forward": "swiglu"}),
    "no network": (Identity, Head.classification, {"feed_forward": "none"}),
}  # fmt: skip


def built(name: str) -> Backbone:
    family, head, options = MODELS[name]
    config = BackboneConfig(**{"depth": 4, "width": 8, "feed_forward_width": 16, **options})
    facts = TaskFacts(
        head=head, vocabulary=VOCABULARY, classes=3, max_length=LENGTH,
        memory=8 if "memory" in options else 0,
    )  # fmt: skip
    with torch.device("meta"):
        return Backbone(config, facts, [family], seed=0)


@pytest.mark.parametrize("name", MODELS)
def test_parts_add_up(name):
    model = built(name).eval()
    parts = 2 if model.facts.head == Head.pair else 1
    tokens = torch.empty((1, parts, LENGTH), dtype=torch.long, device="meta")
    memory = model.facts.memory
    state = model.initial_state(1, memory) if memory else None
    with torch.no_grad():
        whole = count_operations(lambda: model.predict(tokens, None, state))
    found = cost_by_part(built(name), LENGTH, memory=memory)
    assert found.tokens == parts * LENGTH
    assert found.multiply_adds == whole // 2 > 0
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert sum(p.modules * p.parameters for p in found.parts) == found.parameters
    assert sum(p.uses * p.operations for p in found.parts) == whole
    assert "other" not in {part.name for part in found.parts}


def test_layers_that_are_alike_are_one_part():
    parts = {part.name: part for part in cost_by_part(built("plain"), LENGTH).parts}
    tokens, width, hidden = LENGTH + 1, 8, 16  # and the CLS vector
    mixer, network = parts["mixer"], parts["network"]
    assert mixer.layers == network.layers == (1, 4)
    assert (mixer.kind, mixer.modules, mixer.uses) == ("SoftmaxAttention", 4, 4)
    assert mixer.parameters == 4 * width**2 + 4 * width
    assert mixer.multiply_adds == 4 * tokens * width**2 + 2 * tokens**2 * width
    assert network.parameters == 2 * width * hidden + width + hidden
    assert network.multiply_adds == 2 * tokens * width * hidden
    assert (parts["norms"].parameters, parts["norms"].multiply_adds) == (4 * width, 0)


def test_what_differs_between_layers_is_apart_and_what_is_shared_counts_once():
    shared = [part for part in cost_by_part(built("one group"), LENGTH).parts if part.layers]
    assert {(part.modules, part.uses) for part in shared} == {(1, 4)}
    pooled = [p for p in cost_by_part(built("pooled and used again"), LENGTH).parts if p.layers]
    mixers = [part for part in pooled if part.name == "mixer"]
    # 2 layers at 24 tokens; one whose keys are longer, then itself at 12; 2 of the decoder
    assert [part.layers for part in mixers] == [(1, 2), (3, 3), (4, 4), (5, 6)]
    assert [(part.modules, part.uses) for part in mixers] == [(2, 2), (1, 1), (0, 1), (2, 2)]
    assert mixers[2].multiply_adds < mixers[1].multiply_adds < mixers[0].multiply_adds

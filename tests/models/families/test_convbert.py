"""The sizes of ConvBERT's released models."""

from pathlib import Path

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.convbert import MixedAttention
from lra.runners.measurement.parts import cost_by_part

VOCABULARY, POSITIONS = 30_522, 512
PUBLISHED = [
    ({"width": 256, "heads": 4, "feed_forward_width": 1024, "embedding_width": 128}, 13_143_768),
    ({"width": 384, "heads": 8, "feed_forward_width": 1536, "embedding_width": 128,
      "feed_forward_groups": 2}, 17_475_888),
    ({"width": 768, "heads": 12, "feed_forward_width": 3072}, 105_680_520),
]  # fmt: skip
"""The released models: small, medium-small, base; parameters of transformers' ConvBertModel, which
is the encoder with its embeddings and without a head."""


@pytest.mark.parametrize(("options", "published"), PUBLISHED)
def test_parameters_of_the_released_models(options, published):
    config = BackboneConfig(**options, depth=12, residual="post_norm", norm_epsilon=1e-12)
    facts = TaskFacts(
        head=Head.masked_modelling, vocabulary=VOCABULARY, classes=0, max_length=POSITIONS
    )
    with torch.device("meta"):
        model = Backbone(config, facts, [MixedAttention], seed=0)
    parts = cost_by_part(model, 16).parts
    found = sum(part.modules * part.parameters for part in parts if part.name != "head")
    width, narrow = config.width, config.embedding_width or config.width
    terms = {
        "two kinds of tokens": -2 * narrow,
        "positions of full width": POSITIONS * (width - narrow),
        "norm of full width": 2 * (width - narrow),
    }
    assert found == published + sum(terms.values())
    text = (Path(__file__).parents[3] / "docs" / "model-cost.md").read_text()
    assert f"{published:,} | {found:,}" in text
    for name, number in terms.items():
        assert name in text
        assert f"{abs(number):,}" in text

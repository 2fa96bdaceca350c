import dataclasses

import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone

IDS = TaskFacts(head=Head.classification, vocabulary=11, classes=5, max_length=12)
REAL = dataclasses.replace(IDS, scalars=True, vocabulary=0)


def build(mixer, facts):
    config = BackboneConfig(width=8, feed_forward_width=16)
    return Backbone(config, facts, [mixer], seed=0).double().eval()


def test_real_numbers_are_embedded_by_a_linear_map(averaging):
    model = build(averaging, REAL)
    numbers = torch.linspace(-2, 2, 36, dtype=torch.float64).view(3, 1, 12)
    logits, _ = model.predict(numbers)
    assert logits.shape == (3, 5)
    embedded = model.embedding(numbers[..., None])
    torch.testing.assert_close(
        embedded, numbers[..., None] * model.embedding.weight[:, 0] + model.embedding.bias
    )


def test_ids_and_real_numbers_are_not_mistaken(averaging):
    ids, numbers = torch.zeros(3, 1, 12, dtype=torch.long), torch.zeros(3, 1, 12)
    with pytest.raises(ValueError, match=r"are real numbers: got torch\.int64"):
        build(averaging, REAL).predict(ids)
    with pytest.raises(ValueError, match=r"are token ids: got torch\.float32"):
        build(averaging, IDS).predict(numbers)
    with pytest.raises(ValueError, match="predicts token ids"):
        dataclasses.replace(REAL, head=Head.language_modelling)

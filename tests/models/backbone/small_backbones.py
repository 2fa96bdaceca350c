"""A backbone of twelve positions, and tokens for it."""

import dataclasses

import torch
from torch import Tensor

from lra.models.backbone.model import (
    Backbone,
    BackboneConfig,
    Head,
    TaskFacts,
)

LENGTH, CLASSES, VOCABULARY = 12, 5, 11
CONFIG = BackboneConfig(width=8, feed_forward_width=16)


def facts(head: Head = Head.classification) -> TaskFacts:
    return TaskFacts(head=head, vocabulary=VOCABULARY, classes=CLASSES, max_length=LENGTH)


def build(averaging, head: Head = Head.classification, *, seed: int = 0, **changes) -> Backbone:
    config = dataclasses.replace(CONFIG, **changes)
    return Backbone(config, facts(head), [averaging], seed=seed).double().eval()


def tokens(parts: int = 1, length: int = LENGTH, rows: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, VOCABULARY, (rows, parts, length), generator=generator)


KEEP = torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [1]])

"""Random inputs of a model whose cost is measured."""

import torch
from torch import Tensor

from lra.models.backbone.config import TOKEN_HEADS
from lra.models.backbone.model import Head, TaskFacts


def random_inputs(
    sequences: int, length: int, facts: TaskFacts, seed: int
) -> tuple[Tensor, Tensor]:
    """Return random tokens [b, p, l] and targets: [b], or [b, l] for a model that predicts tokens.

    b is the number of `sequences`, l the `length`; p is 2 for pairs of texts and 1 otherwise.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = 2 if facts.head is Head.pair else 1
    shape = (sequences, parts, length)
    if facts.scalars:
        channels = (facts.channels,)[: int(facts.channels > 1)]
        tokens = torch.randn(shape + channels, generator=generator)
    else:
        # From id 1 on, because 0 is padding.
        tokens = torch.randint(1, max(2, facts.vocabulary), shape, generator=generator)
    if facts.head in TOKEN_HEADS:
        return tokens, torch.randint(0, facts.vocabulary, (sequences, length), generator=generator)
    if facts.head is Head.regression:
        return tokens, torch.randn(sequences, generator=generator)
    return tokens, torch.randint(0, facts.classes, (sequences,), generator=generator)

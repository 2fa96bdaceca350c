"""The places at which a trained model is asked, and its answers there with tokens hidden."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from models.backbone.config import Tokens
from models.backbone.heads import Pooling
from models.backbone.model import Backbone
from tasks.task import Batch


class Asked(NamedTuple):
    """A batch and the places where the model is asked; p sequences of b examples are r rows."""

    tokens: Tokens
    keep: Bool[Tensor, "b p l"] | None
    queries: Int[Tensor, "r n"]
    """Places of the stack's input."""
    counts: Bool[Tensor, "r n"]
    """False where a row has fewer places than n."""
    noise: Tokens
    """What hidden tokens are replaced by."""


def ask(
    model: Backbone, batch: Batch, queries: int, generator: torch.Generator, device: torch.device
) -> Asked:
    """Draw the places that are asked: of those that count, without return."""
    tokens, rows = batch.tokens, batch.tokens.flatten(0, 1)
    real = torch.ones_like(rows, dtype=torch.bool)
    if batch.keep is not None:
        real = batch.keep.flatten(0, 1)
    if model.has_cls:
        places = torch.zeros(len(rows), 1, dtype=torch.long)
        counts = torch.ones_like(places, dtype=torch.bool)
    elif not model.per_token and model.config.pooling == Pooling.last:
        places = torch.arange(rows.shape[1]).mul(real).amax(dim=1, keepdim=True)
        counts = real.any(dim=1, keepdim=True)
    else:
        judged = real
        if model.per_token and batch.weight is not None:
            judged = judged & (batch.weight > 0)
        drawn = torch.rand(judged.shape, generator=generator).masked_fill(~judged, -1.0)
        best = drawn.topk(min(queries, judged.shape[1]), dim=1)
        places, counts = best.indices, best.values >= 0
    pool = rows[real]
    picks = torch.randint(len(pool), (tokens.numel(),), generator=generator)
    noise = pool[picks].view_as(tokens)
    keep = None if batch.keep is None else batch.keep.to(device)
    return Asked(tokens.to(device), keep, places.to(device), counts.to(device), noise.to(device))


def counted(model: Backbone, asked: Asked) -> Bool[Tensor, "b n"]:
    """Return which answers count; of a classifier, one an example."""
    return asked.counts if model.per_token else asked.counts[: len(asked.tokens)]


def answers(model: Backbone, asked: Asked) -> Int[Tensor, "b n"]:
    """Return the top class at each place that is asked; of a classifier, one an example."""
    y = model.run(asked.tokens, asked.keep, None).x
    if not model.per_token:
        logits = model.classify(y, asked.keep, asked.tokens.shape[1])
        return logits.argmax(-1)[:, None]
    row = torch.arange(len(y), device=y.device)[:, None]
    read: Tensor = cast(Any, model.head)(y[row, asked.queries])
    return read.argmax(-1)


def hidden_answers(model: Backbone, asked: Asked, distance: int) -> Int[Tensor, "b n"]:
    """Return the answers with all tokens replaced that are farther than `distance`.

    Padding stays padding, and places stay what they are.
    """
    place = torch.arange(asked.tokens.shape[-1], device=asked.tokens.device) + model.has_cls
    shape = asked.tokens.shape
    found = []
    for number in range(asked.queries.shape[1]):
        query = asked.queries[:, number, None]
        far = ((place - query).abs() > distance).view(shape)
        if asked.keep is not None:
            far = far & asked.keep
        shown = asked._replace(tokens=torch.where(far, asked.noise, asked.tokens), queries=query)
        found.append(answers(model, shown))
    return torch.cat(found, dim=1)


def doubling(longest: int) -> list[int]:
    """Return 0, 1, 2, 4, … below `longest`, and `longest`."""
    powers = [1 << power for power in range(longest.bit_length()) if 1 << power < longest]
    return sorted({0, *powers, longest})


def least(shares: dict[int, float], stay: Callable[[int], float], keeps: float) -> int:
    """Return the least distance at and beyond which at least `keeps` of the answers stay.

    Args:
        shares: By distance, ascending; at the last one all answers stay.
        stay: Gives the share at any distance between two of them, taken to rise there.
        keeps: The share that is wanted.
    """
    known = list(shares)
    high = len(known) - 1
    while high and shares[known[high - 1]] >= keeps:
        high -= 1
    if not high:
        return known[0]
    below, enough = known[high - 1], known[high]
    while enough - below > 1:
        middle = (below + enough) // 2
        if stay(middle) >= keeps:
            enough = middle
        else:
            below = middle
    return enough

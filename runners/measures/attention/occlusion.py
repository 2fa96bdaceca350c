"""The answers of a trained model at queried positions while other tokens are hidden."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lra.models.backbone.config import Tokens
from lra.models.backbone.heads import READ_FIRST, Pooling
from lra.models.backbone.model import Backbone
from lra.tasks.task import Batch


class QueriedBatch(NamedTuple):
    """A batch and the positions that are queried; p sequences of b examples are r rows."""

    tokens: Tokens
    keep: Bool[Tensor, "b p l"] | None
    queries: Int[Tensor, "r n"]
    """Positions of the stack's input."""
    counts: Bool[Tensor, "r n"]
    """False where a row has fewer positions than n."""
    noise: Tokens
    """Tokens that replace hidden ones."""


def draw_queries(
    model: Backbone, batch: Batch, queries: int, generator: torch.Generator, device: torch.device
) -> QueriedBatch:
    """Draw the queried positions among those that count, without replacement."""
    tokens, rows = batch.tokens, batch.tokens.flatten(0, 1)
    real = torch.ones_like(rows, dtype=torch.bool)
    if batch.keep is not None:
        real = batch.keep.flatten(0, 1)
    if not model.per_token and model.config.pooling in READ_FIRST:
        positions = torch.zeros(len(rows), 1, dtype=torch.long)
        counts = torch.ones_like(positions, dtype=torch.bool)
    elif not model.per_token and model.config.pooling == Pooling.last:
        positions = torch.arange(rows.shape[1]).mul(real).amax(dim=1, keepdim=True)
        counts = real.any(dim=1, keepdim=True)
    else:
        judged = real
        if not model.per_token and model.config.pooling == Pooling.mean_all:
            judged = torch.ones_like(real)
        if model.per_token and batch.weight is not None:
            judged = judged & (batch.weight > 0)
        drawn = torch.rand(judged.shape, generator=generator).masked_fill(~judged, -1.0)
        best = drawn.topk(min(queries, judged.shape[1]), dim=1)
        positions, counts = best.indices + model.has_cls, best.values >= 0
    pool = rows[real]
    picks = torch.randint(len(pool), (tokens.numel(),), generator=generator)
    noise = pool[picks].view_as(tokens)
    keep = None if batch.keep is None else batch.keep.to(device)
    return QueriedBatch(
        tokens.to(device), keep, positions.to(device), counts.to(device), noise.to(device)
    )


def counted_answers(model: Backbone, queried: QueriedBatch) -> Bool[Tensor, "b n"]:
    """Return which answers count; for a classifier, one per example."""
    return queried.counts if model.per_token else queried.counts[: len(queried.tokens)]


def top_classes(model: Backbone, queried: QueriedBatch) -> Int[Tensor, "b n"]:
    """Return the top class at each queried position; for a classifier, one per example."""
    y = model.run(queried.tokens, queried.keep, None).x
    if not model.per_token:
        logits = model.classify(y, queried.keep, queried.tokens.shape[1])
        return logits.argmax(-1)[:, None]
    row = torch.arange(len(y), device=y.device)[:, None]
    read: Tensor = cast(Any, model.head)(y[row, queried.queries])
    return read.argmax(-1)


def hidden_answers(model: Backbone, queried: QueriedBatch, distance: int) -> Int[Tensor, "b n"]:
    """Return the answers after replacing all tokens farther than `distance`.

    Padding stays padding, and positions stay what they are.
    """
    position = torch.arange(queried.tokens.shape[-1], device=queried.tokens.device) + model.has_cls
    shape = queried.tokens.shape
    parts = []
    for number in range(queried.queries.shape[1]):
        query = queried.queries[:, number, None]
        far = ((position - query).abs() > distance).view(shape)
        if queried.keep is not None:
            far = far & queried.keep
        visible = queried._replace(
            tokens=torch.where(far, queried.noise, queried.tokens), queries=query
        )
        parts.append(top_classes(model, visible))
    return torch.cat(parts, dim=1)


def doublings(longest: int) -> list[int]:
    """Return 0, 1, 2, 4, … below `longest`, and `longest`."""
    powers = [1 << power for power in range(longest.bit_length()) if 1 << power < longest]
    return sorted({0, *powers, longest})


def least(shares: dict[int, float], stay: Callable[[int], float], keeps: float) -> int:
    """Return the least distance at and beyond which at least `keeps` of the answers stay.

    Args:
        shares: By distance, ascending; at the last one all answers stay.
        stay: Gives the share at any distance between two of them, taken to rise there.
        keeps: That share.
    """
    distances = list(shares)
    high = len(distances) - 1
    while high and shares[distances[high - 1]] >= keeps:
        high -= 1
    if not high:
        return distances[0]
    below, enough = distances[high - 1], distances[high]
    while enough - below > 1:
        middle = (below + enough) // 2
        if stay(middle) >= keeps:
            enough = middle
        else:
            below = middle
    return enough

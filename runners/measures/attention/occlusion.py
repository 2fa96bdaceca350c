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
    """A batch, and the positions whose answers are queried.

    Each of the b examples has p sequences of l tokens, which makes r = b p rows.
    """

    tokens: Tokens
    keep: Bool[Tensor, "b p l"] | None
    queries: Int[Tensor, "r n"]
    """The n queried positions of each row, in the input of the stack."""
    counts: Bool[Tensor, "r n"]
    """False for the surplus entries of a row that has fewer than n positions to query."""
    noise: Tokens
    """A random token for each position, which replaces the token if that is hidden."""


def draw_queries(
    model: Backbone, batch: Batch, queries: int, generator: torch.Generator, device: torch.device
) -> QueriedBatch:
    """Draw the queried positions of a batch, and for each position a random token to hide it.

    A classifier that reads one position is queried there. Other models are queried at `queries`
    positions of each row (or all, if there are fewer) that count in the loss, without replacement.
    """
    tokens, rows = batch.tokens, batch.tokens.flatten(0, 1)
    real = torch.ones(rows.shape[:2], dtype=torch.bool)
    if batch.keep is not None:
        real = batch.keep.flatten(0, 1)
    if not model.per_token and model.config.pooling in READ_FIRST:
        positions = torch.zeros(len(rows), 1, dtype=torch.long)
        counts = torch.ones_like(positions, dtype=torch.bool)
    elif not model.per_token and model.config.pooling == Pooling.last:
        # The largest position of a real token: the last one.
        positions = torch.arange(rows.shape[1]).mul(real).amax(dim=1, keepdim=True)
        counts = real.any(dim=1, keepdim=True)
    else:
        eligible = real
        if not model.per_token and model.config.pooling == Pooling.mean_all:
            eligible = torch.ones_like(real)
        if model.per_token and batch.weight is not None:
            eligible = eligible & (batch.weight > 0)
        # The positions with the largest random numbers are a draw without replacement.
        priority = torch.rand(eligible.shape, generator=generator).masked_fill(~eligible, -1.0)
        largest = priority.topk(min(queries, eligible.shape[1]), dim=1)
        # A CLS vector moves all tokens by one; -1 marks positions that are not eligible.
        positions, counts = largest.indices + model.has_cls, largest.values >= 0
    real_tokens = rows[real]
    picks = torch.randint(len(real_tokens), (real.numel(),), generator=generator)
    noise = real_tokens[picks].view_as(tokens)
    keep = None if batch.keep is None else batch.keep.to(device)
    return QueriedBatch(
        tokens.to(device), keep, positions.to(device), counts.to(device), noise.to(device)
    )


def counted_answers(model: Backbone, queried: QueriedBatch) -> Bool[Tensor, "b n"]:
    """Return which of the queried answers count; a classifier has one answer for each example."""
    return queried.counts if model.per_token else queried.counts[: len(queried.tokens)]


def top_classes(model: Backbone, queried: QueriedBatch) -> Int[Tensor, "b n"]:
    """Return the class with the largest logit at each queried position.

    A classifier has one answer for each example, so n is 1.
    """
    y = model.run(queried.tokens, queried.keep, None).x
    if not model.per_token:
        logits = model.classify(y, queried.keep, queried.tokens.shape[1])
        return logits.argmax(-1)[:, None]
    row = torch.arange(len(y), device=y.device)[:, None]
    logits_at_queries: Tensor = cast(Any, model.head)(y[row, queried.queries])
    return logits_at_queries.argmax(-1)


def hidden_answers(model: Backbone, queried: QueriedBatch, distance: int) -> Int[Tensor, "b n"]:
    """Return the top classes when all tokens farther than `distance` from the query are replaced.

    The model runs once for each of the n queries. Padding stays padding, and no token moves.
    """
    position = torch.arange(queried.tokens.shape[2], device=queried.tokens.device) + model.has_cls
    shape = queried.tokens.shape[:3]
    parts = []
    for number in range(queried.queries.shape[1]):
        query = queried.queries[:, number, None]
        far = ((position - query).abs() > distance).view(shape)  # from [r, l] to [b, p, l]
        if queried.keep is not None:
            far = far & queried.keep
        if queried.tokens.ndim > far.ndim:  # all channels of a token
            far = far[..., None]
        visible = queried._replace(
            tokens=torch.where(far, queried.noise, queried.tokens), queries=query
        )
        parts.append(top_classes(model, visible))
    return torch.cat(parts, dim=1)


def doublings(longest: int) -> list[int]:
    """Return the distances 0, 1, 2, 4, … below `longest`, and then `longest`."""
    powers = [1 << power for power in range(longest.bit_length()) if 1 << power < longest]
    return sorted({0, *powers, longest})


def least(shares: dict[int, float], stay: Callable[[int], float], keeps: float) -> int:
    """Return the least distance from which on at least the fraction `keeps` of answers stays.

    The tested distances are searched from the largest one down. Then bisection searches between
    the last distance that suffices and the next smaller one, as if the fraction rose between them.

    Args:
        shares: Fraction of unchanged answers by distance, ascending; it is 1 at the last distance.
        stay: Computes the fraction at any other distance.
        keeps: The fraction of answers that must stay unchanged.
    """
    distances = list(shares)
    number = len(distances) - 1
    while number and shares[distances[number - 1]] >= keeps:
        number -= 1
    if not number:
        return distances[0]
    too_small, sufficient = distances[number - 1], distances[number]
    while sufficient - too_small > 1:
        middle = (too_small + sufficient) // 2
        if stay(middle) >= keeps:
            sufficient = middle
        else:
            too_small = middle
    return sufficient

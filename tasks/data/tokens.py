"""Answers at every position: sums of losses and hits, by position and by size classes."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from lra.tasks.task import Baseline, Batch, Tally
from lra.tasks.tensors import Tensor, torch

LARGEST = 1 << 48
"""No position and no count of tokens comes near."""


def tally(
    nll: Float[Tensor, "b l"],
    hit: Bool[Tensor, "b l"],
    batch: Batch,
    numbers: Mapping[str, tuple[Int[Tensor, "b l"], int]],
) -> Tally:
    """Sum losses in nats and hits over the tokens that count; an example is a row.

    Args:
        nll: Loss of each answer.
        hit: Whether it is right.
        batch: What was to be answered; `weight` says which positions count.
        numbers: By kind, a number that each answer has, and the base of the size classes that
            losses are summed by. The position in the row, by base 2, is always among them.
    """
    nll, hit = nll.detach().double().cpu(), hit.detach().cpu()
    weight = torch.ones_like(nll) if batch.weight is None else batch.weight.double().cpu()
    count = weight.sum(1)
    there = count > 0
    means = (nll * weight).sum(1)[there] / count[there]
    shares = (hit * weight).sum(1)[there] / count[there]
    position = torch.arange(1, weight.shape[1] + 1).expand(weight.shape)
    parts: dict[tuple[str, str], tuple[float, float]] = {}
    for kind, (sizes, base) in {"position": (position, 2), **numbers}.items():
        parts |= by_size(kind, sizes, nll, weight, base=base)
    return Tally(
        nll_sum=float((nll * weight).sum()),
        hits=float((hit * weight).sum()),
        count=float(weight.sum()),
        index=batch.index[there],
        nll=means.float(),
        hit=shares.float(),
        parts=parts,
    )


def size_class(base: int, exponent: int) -> str:
    """Return the name of the numbers from `base` ** `exponent` on, below the next; -1: 0 alone."""
    if exponent < 0:
        return "0"
    first, last = base**exponent, base ** (exponent + 1) - 1
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def by_size(
    kind: str,
    numbers: Int[Tensor, "b l"],
    nll: Float[Tensor, "b l"],
    weight: Float[Tensor, "b l"],
    *,
    base: int,
) -> dict[tuple[str, str], tuple[float, float]]:
    """Sum losses by the size of a number that each prediction has."""
    powers = int(math.log(LARGEST, base)) + 1
    edges = torch.tensor([base**power for power in range(powers)])
    exponent = torch.bucketize(numbers.contiguous(), edges, right=True) - 1
    position = exponent.flatten() + 1
    losses = torch.zeros(powers + 1, dtype=torch.float64).index_add_(
        0, position, (nll * weight).flatten()
    )
    items = torch.zeros(powers + 1, dtype=torch.float64).index_add_(0, position, weight.flatten())
    return {
        (kind, size_class(base, position - 1)): (float(losses[position]), float(items[position]))
        for position in items.nonzero().flatten().tolist()
    }


def unigram_baseline(
    frequencies: Int[np.ndarray, " v"],
    seen: Int[np.ndarray, " v"],
    derived: Callable[[float], Mapping[str, float]],
) -> Baseline:
    """Return the baseline of an answer that is always the same: token frequencies, no context.

    Args:
        frequencies: How often each token occurs in train; each count is taken plus 1.
        seen: How often each token is the right answer in the split that is judged.
        derived: Gives other metrics from the mean loss in nats.
    """
    counts = 1 + frequencies
    surprise = -np.log(counts / counts.sum())
    loss = float((seen * surprise).sum() / seen.sum())
    return Baseline(
        name="unigram",
        accuracy=float(seen[int(counts.argmax())] / seen.sum()),
        outcomes=None,
        sentence="predicts each token by its frequency in the training split, without context",
        measures={"loss": loss, **derived(loss)},
    )

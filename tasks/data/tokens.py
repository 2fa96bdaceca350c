"""Sums of losses and hits over predicted tokens, in total and by groups such as positions."""

import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from lra.tasks.task import Baseline, Batch, Tally
from lra.tasks.tensors import Tensor, torch

LARGEST = 1 << 48
"""A bound that no position and no count of tokens reaches."""


def tally(
    nll: Float[Tensor, "b l"],
    hit: Bool[Tensor, "b l"],
    batch: Batch,
    numbers: Mapping[str, tuple[Int[Tensor, "b l"], int]],
    *,
    groups: Mapping[str, Int[Tensor, "b l"]] = {},
    by_class: bool = False,
) -> Tally:
    """Return sums over the tokens of a batch, weighted by `batch.weight`; an example is a row.

    Args:
        nll: Loss of each token in nats.
        hit: Whether each token is predicted correctly.
        batch: The batch with the targets.
        numbers: Further kinds of groups: for each kind, a number for each token, and the base b of
            the groups b^e … b^(e+1) - 1. The position, with base 2, is always a kind.
        groups: For each group of scores, a number for each token: hits are counted by number.
        by_class: Whether hits are counted by class, too.
    """
    nll, hit = nll.detach().double().cpu(), hit.detach().cpu()
    weight = torch.ones_like(nll) if batch.weight is None else batch.weight.double().cpu()
    row_weight = weight.sum(1)
    counted = row_weight > 0
    means = (nll * weight).sum(1)[counted] / row_weight[counted]
    shares = (hit * weight).sum(1)[counted] / row_weight[counted]
    position = torch.arange(1, weight.shape[1] + 1).expand(weight.shape)
    parts: dict[tuple[str, str], tuple[float, float]] = {}
    for kind, (sizes, base) in {"position": (position, 2), **numbers}.items():
        parts |= by_size(kind, sizes, nll, weight, base=base)
    return Tally(
        nll_sum=float((nll * weight).sum()),
        hits=float((hit * weight).sum()),
        count=float(weight.sum()),
        index=batch.index[counted],
        nll=means.float(),
        hit=shares.float(),
        parts=parts,
        groups={
            (name, str(number)): hits
            for name, each in groups.items()
            for number, hits in hits_by(each, hit, weight).items()
        },
        classes=hits_by(batch.target, hit, weight) if by_class else {},
    )


def hits_by(
    numbers: Int[Tensor, "*b"], hit: Bool[Tensor, "*b"], weight: Float[Tensor, "*b"]
) -> dict[int, tuple[float, float]]:
    """Return the weights of correct items, and of all items, by the number of an item."""
    counted = weight > 0
    values, slots = torch.unique(numbers.cpu()[counted], return_inverse=True)
    weights = weight[counted].double()
    sums = torch.zeros(2, len(values), dtype=torch.float64)
    sums[0].index_add_(0, slots, weights * hit.cpu()[counted])
    sums[1].index_add_(0, slots, weights)
    return dict(zip(values.tolist(), zip(*sums.tolist(), strict=True), strict=True))


def correlation(classes: Mapping[int, tuple[float, float]]) -> float:
    """Return Matthews' correlation of the predicted and the true of two classes.

    `classes` has the numbers of correct items and of items by class. Without items or answers of
    one class there is no correlation, and the result is 0.
    """
    (right0, all0), (right1, all1) = (classes.get(each, (0.0, 0.0)) for each in range(2))
    said0, said1 = right0 + all1 - right1, right1 + all0 - right0
    spread = math.sqrt(said0 * said1 * all0 * all1)
    return (right0 * right1 - (all0 - right0) * (all1 - right1)) / (spread or 1.0)


def next_tokens(batch: Batch) -> Batch:
    """Return a batch that also asks for the next token at real positions without a question."""
    assert batch.weight is not None, "a batch with questions says which positions have one"
    tokens = batch.tokens[:, 0]
    asked, known = batch.weight > 0, torch.ones_like(tokens, dtype=torch.bool)
    if batch.keep is not None:
        known = batch.keep[:, 0].roll(-1, 1)
    known[:, -1] = False
    return batch._replace(
        target=torch.where(asked, batch.target, tokens.roll(-1, 1) * known),
        weight=(asked | known).float(),
    )


def size_class(base: int, exponent: int) -> str:
    """Return the name of the group `base`^`exponent` … `base`^(`exponent` + 1) - 1; -1: only 0."""
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
    """Return, by (kind, group), the weighted losses and the weights of the tokens in a group.

    A token is in the group of its number in `numbers`: base^e … base^(e+1) - 1, or 0.
    """
    powers = int(math.log(LARGEST, base)) + 1
    edges = torch.tensor([base**power for power in range(powers)])
    exponent = torch.bucketize(numbers.contiguous(), edges, right=True) - 1
    slot = exponent.flatten() + 1  # 0 for the number 0, else e + 1
    losses = torch.zeros(powers + 1, dtype=torch.float64).index_add_(
        0, slot, (nll * weight).flatten()
    )
    items = torch.zeros(powers + 1, dtype=torch.float64).index_add_(0, slot, weight.flatten())
    return {
        (kind, size_class(base, group - 1)): (float(losses[group]), float(items[group]))
        for group in items.nonzero().flatten().tolist()
    }


def unigram_baseline(
    frequencies: Int[np.ndarray, " v"],
    seen: Int[np.ndarray, " v"],
    derived: Callable[[float], Mapping[str, float]],
) -> Baseline:
    """Return the baseline that predicts tokens by their frequency, without context.

    Args:
        frequencies: How often each token occurs in train; 1 is added to each.
        seen: How often each token is a target in the evaluated split.
        derived: Returns further metrics from the mean loss in nats.
    """
    counts = 1 + frequencies
    surprise = -np.log(counts / counts.sum())
    loss = float((seen * surprise).sum() / seen.sum())
    return Baseline(
        name="unigram",
        accuracy=float(seen[int(counts.argmax())] / seen.sum()),
        outcomes=None,
        sentence="This baseline predicts each token by its frequency in train, without context.",
        measures={"loss": loss, **derived(loss)},
    )

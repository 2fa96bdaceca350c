"""Recalled tokens: those that complete a pair of tokens which stood earlier in the same window.

    window     the  cat  sat  on  the  cat        "cat" at the end completes "the cat", which the
    recalled                            yes       window had before: a model can look it up

A pair that is rare in train must be looked up; a frequent one may be known by heart. Each class of
tokens has its mean loss, its fraction of all tokens, and its part of the mean loss over all tokens:
the sum of its losses divided by the number of all tokens. The parts of recalled and other tokens
add up to the mean loss, so the gap between two models splits into a part for each class (Arora et
al. 2023, arXiv:2312.04927).
"""

import hashlib
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lra.models.backbone.model import Backbone
from lra.models.state import detach
from lra.runners.isolation.progress import so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.records import Measurement, Status
from lra.runners.training.data_check import check_streams
from lra.runners.training.prefetch import asked_of, first_of, masks_of, to_device
from lra.runners.training.recurrent_state import initial_state, remembered_tokens
from lra.tasks.language.base import COUNT_AT_ONCE, LanguageTask
from lra.tasks.task import Batch

BLOCKS = 100
"""Windows in succession form at most so many blocks, whose parts of the loss are the samples."""


class JudgedTokens(NamedTuple):
    """The n scored tokens of a split, window by window."""

    window: Int[np.ndarray, " n"]
    """Number of the token's window in its split."""
    pair: Int[np.ndarray, " n"]
    """The token and the one before it, as the number before x vocabulary + token."""
    recalled: Bool[np.ndarray, " n"]
    nll: Float[np.ndarray, " n"]
    """Loss in nats."""


def completes_earlier_pair(batch: Batch, vocabulary: int) -> Bool[Tensor, "b l"]:
    """Return whether each target and the token before it are a pair that its window had before.

    With documents, the pair must have been in the same document.
    """
    pair = batch.tokens[:, 0] * vocabulary + batch.target
    if batch.document is not None:
        first = batch.document.amin(1, keepdim=True)
        pair = pair + (batch.document - first) * vocabulary**2
    ordered, order = pair.sort(dim=1, stable=True)  # equal pairs stay in the order of the text
    again = torch.zeros_like(pair, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    return torch.zeros_like(again).scatter(1, order, again)


def count_pairs(
    stream: np.ndarray, pairs: Int[np.ndarray, " u"], vocabulary: int
) -> Int[np.ndarray, " u"]:
    """Return how often each of the different, ascending `pairs` stands in a stream of tokens."""
    total = np.zeros(len(pairs), np.int64)
    for first in range(0, len(stream) - 1 if len(pairs) else 0, COUNT_AT_ONCE):
        part = stream[first : first + COUNT_AT_ONCE + 1].astype(np.int64)
        there = part[:-1] * vocabulary + part[1:]
        place = np.searchsorted(pairs, there)
        place[place == len(pairs)] = 0
        total += np.bincount(place[pairs[place] == there], minlength=len(pairs))
    return total


def judge_tokens(
    model: Backbone,
    task: LanguageTask,
    *,
    split: str,
    examples: int | None,
    batch_size: int,
    hardware: HardwareProfile,
) -> JudgedTokens:
    """Return the loss of every scored token of a split, read as in evaluation.

    Args:
        model: A trained model.
        task: The task, with prepared data.
        split: The split.
        examples: How many windows are read, the first ones; None: all.
        batch_size: Rows of a batch.
        hardware: The device, and the number format of computations.
    """
    device = torch.device(str(hardware.device))
    model, state = model.to(device).eval(), None
    check_streams(model, task, split, batch_size, training=False)
    memory = remembered_tokens(model.config, task, training=False) if task.memory else 0
    batches = task.batches(split, batch_size=batch_size, seed=0)
    parts: list[tuple[Tensor, ...]] = []
    read, size = 0, min(task.examples(split), examples or task.examples(split))
    with torch.inference_mode(), autocast(hardware):
        for batch in batches if examples is None else first_of(batches, examples):
            so_far("evaluating tokens", read, size, "window")
            read += len(batch.tokens)
            moved = to_device(batch, device)
            if batch.reset is not None and bool(batch.reset.any()):
                state = initial_state(model, len(batch.tokens), memory)
            outcome = model(
                moved.tokens, moved.target, moved.keep, state, layout=masks_of(moved),
                asked=asked_of(batch, device),
            )  # fmt: skip
            state = detach(outcome.state)
            counts = slice(None) if batch.weight is None else (batch.weight > 0).flatten()
            columns = (
                batch.index[:, None].expand_as(batch.target),
                batch.tokens[:, 0] * task.spec.vocabulary + batch.target,
                completes_earlier_pair(batch, task.spec.vocabulary),
                outcome.nll.double().cpu(),
            )
            parts.append(tuple(column.flatten()[counts] for column in columns))
    joined = [torch.cat(column).numpy() for column in zip(*parts, strict=True)]
    order = np.argsort(joined[0], kind="stable")
    return JudgedTokens(*(column[order] for column in joined))


def token_rows(
    tokens: JudgedTokens, task: LanguageTask, *, split: str, rare: float
) -> Iterator[Measurement]:
    """Yield the rows of each class of tokens: all, recalled (rare and frequent pairs), other.

    Args:
        tokens: The scored tokens.
        task: The task, whose training text says how often a pair occurs.
        split: The split of the tokens, for labels.
        rare: Quantile of the counts in train of the pairs of recalled tokens; a pair is rare if its
            count is at most this quantile.
    """
    pairs, place = np.unique(tokens.pair[tokens.recalled], return_inverse=True)
    counts = count_pairs(task.split("train").tokens, pairs, task.spec.vocabulary)[place]
    limit = int(np.quantile(counts, rare, method="lower")) if len(counts) else 0
    is_rare = np.zeros_like(tokens.recalled)
    is_rare[tokens.recalled] = counts <= limit
    drawn = hashlib.sha256(tokens.window.tobytes() + tokens.pair.tobytes()).hexdigest()[:8]
    labels = {"split": split, "rare": f"{rare:g}", "rare_at_most": str(limit), "drawn": drawn}
    number, windows = np.unique(tokens.window, return_inverse=True)
    blocks = min(BLOCKS, len(number))
    block = windows * blocks // len(number)
    for kind, chosen in {
        "all": np.ones_like(tokens.recalled),
        "recalled": tokens.recalled,
        "rare": is_rare,
        "frequent": tokens.recalled & ~is_rare,
        "other": ~tokens.recalled,
    }.items():
        items, losses = int(chosen.sum()), tokens.nll[chosen]
        row_labels = labels | {"kind": kind, "items": str(items)}
        total = math.fsum(losses.tolist())
        if not math.isfinite(total):
            reason = f"the loss of a token of the {split} split is not finite"
            yield Measurement(
                metric="recalled_loss", status=Status.diverged, reason=reason, labels=row_labels
            )
            continue
        share = items / len(tokens.nll)
        yield Measurement(metric="recalled_share", value=share, labels=row_labels)
        if items:
            yield Measurement(metric="recalled_loss", value=total / items, labels=row_labels)
        sums = np.bincount(block[chosen], weights=losses, minlength=blocks)
        samples = tuple(float(f"{s:.6g}") for s in (sums * blocks / len(tokens.nll)).tolist())
        part = total / len(tokens.nll)
        yield Measurement(metric="loss_part", value=part, samples=samples, labels=row_labels)

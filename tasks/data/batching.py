"""From stored sequences to batches: order, length buckets, padding, ranks.

The order is drawn from raw 64-bit words, whose stream is the same on every platform. A whole epoch
is planned before its first batch, which takes milliseconds: resuming is a slice of the plan.
"""

from enum import IntEnum, StrEnum, auto

import numpy as np
from jaxtyping import Int, Int64, Shaped, UInt64

from lra.tasks.data.storage import RaggedRows
from lra.tasks.task import Batch
from lra.tasks.tensors import torch

LONGEST = 2**31
"""No row is longer."""


class Draw(IntEnum):
    """What a stream of random words is for: streams of one seed do not overlap."""

    order = 1
    buckets = 2
    split = 3
    sample = 4
    pictures = 5
    offset = 6
    masks = 7
    diagnostic = 8
    lengths = 9
    sight = 10
    replaced = 11


class Piece(StrEnum):
    """Which tokens are kept of a row that is too long."""

    first = auto()
    random_in_training = auto()
    """As many in a row from a random place on, anew in each epoch; evaluation keeps the first."""
    random = auto()
    """The same in evaluation, too, where the place is drawn once and for all."""


def random_words(draw: Draw, seed: int, number: int) -> Shaped[np.ndarray, " n"]:
    """Return `number` uniform 64-bit words that depend on (draw, seed) alone."""
    return np.random.PCG64(np.random.SeedSequence((int(draw), seed))).random_raw(number)


def permutation(draw: Draw, seed: int, number: int) -> Int[np.ndarray, " n"]:
    """Return a uniform order of 0 … number - 1."""
    return np.argsort(random_words(draw, seed, number), kind="stable")


def training_plan(
    lengths: Int[np.ndarray, " n"], *, batch_size: int, seed: int, bucket_batches: int | None
) -> list[Int[np.ndarray, " b"]]:
    """Return the rows of every batch of one epoch; an incomplete last batch is dropped.

    The shuffled split is cut into buckets of `bucket_batches` batches; inside a bucket batches
    hold neighbours in length, and come in random order. None: batches are cut from the shuffled
    split as it is.
    """
    order = permutation(Draw.order, seed, len(lengths))
    number = len(order) // batch_size
    if bucket_batches is None:
        return list(order[: number * batch_size].reshape(-1, batch_size))
    turn = random_words(Draw.buckets, seed, number)
    plan = []
    for first in range(0, number, bucket_batches):
        last = min(first + bucket_batches, number)
        bucket = order[first * batch_size : last * batch_size]
        by_length = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches = by_length.reshape(-1, batch_size)
        plan += list(batches[np.argsort(turn[first:last], kind="stable")])
    return plan


def evaluation_plan(
    lengths: Int[np.ndarray, " n"], *, batch_size: int, bucket_batches: int | None
) -> list[Int[np.ndarray, " b"]]:
    """Return every row once, longest first (what does not fit in memory shows at once).

    Where `bucket_batches` is None, rows come in the split's own order.
    """
    grouped = bucket_batches is not None
    order = np.argsort(-lengths, kind="stable") if grouped else np.arange(len(lengths))
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def check_ranks(*, batch_size: int, rank: int, ranks: int) -> None:
    """Raise ValueError unless these can share an epoch."""
    if batch_size < 1 or not 0 <= rank < ranks:
        raise ValueError(
            "batches need batch_size >= 1 and 0 <= rank < ranks: got "
            f"batch_size={batch_size}, rank={rank}, ranks={ranks}"
        )


def plan_epoch(
    lengths: Int[np.ndarray, " n"],
    *,
    train: bool,
    batch_size: int,
    seed: int,
    bucket_batches: int | None,
    rank: int,
    ranks: int,
) -> list[Int[np.ndarray, " b"]]:
    """Return the rows of this rank's batches.

    All ranks together do what one rank with `batch_size * ranks` would: rank r takes every
    `ranks`-th row of that batch, so that the ranks' rows are about equally long.
    """
    check_ranks(batch_size=batch_size, rank=rank, ranks=ranks)
    together = batch_size * ranks
    if train:
        if len(lengths) < together:
            raise ValueError(
                f"batch_size={batch_size} on ranks={ranks} needs {together} training examples: the "
                f"split has {len(lengths)}; lower the batch size"
            )
        plan = training_plan(lengths, batch_size=together, seed=seed, bucket_batches=bucket_batches)
    else:
        plan = evaluation_plan(lengths, batch_size=together, bucket_batches=bucket_batches)
    mine = (rows[rank::ranks] for rows in plan)
    return [rows for rows in mine if len(rows)]


def check_lengths(
    name: str,
    *,
    max_length: int,
    bucket_batches: int | None,
    padded_length: int | None = None,
    most: int = LONGEST,
) -> None:
    """Raise ValueError unless a task of stored rows can have these."""
    if not 1 <= max_length <= most or (bucket_batches is not None and bucket_batches < 1):
        limit = "" if most == LONGEST else f" <= {most}"
        raise ValueError(
            f"{name} needs 1 <= max_length{limit}, and bucket_batches >= 1 or null: got "
            f"max_length={max_length}, bucket_batches={bucket_batches}"
        )
    if padded_length is not None and padded_length < max_length:
        raise ValueError(
            f"{name} pads rows of up to max_length={max_length} tokens: got "
            f"padded_length={padded_length}; wanted {max_length} or more, or null for the "
            "longest row of each batch"
        )


def collate(
    split: RaggedRows,
    rows: Int[np.ndarray, " b"],
    *,
    max_length: int,
    shift: int,
    padded_length: int | None = None,
    words: UInt64[np.ndarray, " s"] | None = None,
) -> Batch:
    """Return a batch padded with 0, of rows cut to `max_length`.

    Args:
        split: The stored examples.
        rows: Which of them.
        max_length: Longer rows keep `max_length` tokens.
        shift: Added to every stored token (bytes become ids by 1).
        padded_length: Tokens of every row of the batch, padding included; None = of its longest.
        words: A random word for each sequence, by which a longer one begins; None = at its start.
    """
    parts, sequences = split.parts, split.sequences(rows)
    flat, starts = split.tokens, split.offsets[sequences]
    whole = split.offsets[sequences + 1] - starts
    lengths = np.minimum(whole, max_length)
    if words is not None:
        starts = starts + (words % (whole - lengths + 1).astype(np.uint64)).astype(starts.dtype)
    longest = padded_length or int(lengths.max())
    full = bool((lengths == longest).all())
    # Copied as stored, widened at once: twice as fast as widening row by row.
    if full and len(flat) % longest == 0 and bool((starts == sequences * longest).all()):
        narrow = flat.reshape(-1, longest)[sequences]
    else:
        narrow = np.zeros((len(sequences), longest), flat.dtype)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            narrow[row, :length] = flat[start : start + length]
    keep = None if full else np.arange(longest) < lengths[:, None]
    tokens: Int64[np.ndarray, "b l"] = np.add(
        narrow, shift if keep is None else shift * keep, dtype=np.int64
    )
    return Batch(
        tokens=torch.from_numpy(tokens).view(-1, parts, longest),
        target=torch.from_numpy(split.targets[rows].astype(np.int64)),
        index=torch.from_numpy(rows.astype(np.int64)),
        keep=None if keep is None else torch.from_numpy(keep).view(-1, parts, longest),
    )

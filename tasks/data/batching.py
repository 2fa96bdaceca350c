"""From stored sequences to batches: order, sorting by length, padding, ranks.

The order is drawn from raw 64-bit words, which are the same on every platform. A whole epoch is
planned before its first batch, in milliseconds, so a resumed run takes the rest of the same plan.
"""

from enum import IntEnum, StrEnum, auto

import numpy as np
from jaxtyping import Float32, Int, Int64, Shaped, UInt64

from lra.tasks.data.storage import RaggedRows
from lra.tasks.task import Batch
from lra.tasks.tensors import torch

LONGEST = 2**31
"""Most tokens of a row."""


class Draw(IntEnum):
    """Purpose of random words; each purpose has a separate stream for the same seed."""

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
    fresh = 12
    probe = 13
    redrawn = 14
    sampled = 15
    strand = 20


class Piece(StrEnum):
    """Which tokens a model reads of a row that is too long."""

    first = auto()
    """The first ones."""
    random_in_training = auto()
    """In training, a random piece, drawn again in each epoch; in evaluation, the first ones."""
    random = auto()
    """A random piece in evaluation, too, drawn once."""


def random_words(draw: Draw, seed: int, number: int) -> Shaped[np.ndarray, " n"]:
    """Return `number` uniform 64-bit words that depend on (draw, seed) alone."""
    return np.random.PCG64(np.random.SeedSequence((int(draw), seed))).random_raw(number)


def permutation(draw: Draw, seed: int, number: int) -> Int[np.ndarray, " n"]:
    """Return a random order of 0 … number - 1 that depends on (draw, seed) alone."""
    return np.argsort(random_words(draw, seed, number), kind="stable")


def training_plan(
    lengths: Int[np.ndarray, " n"], *, batch_size: int, seed: int, bucket_batches: int | None
) -> list[Int[np.ndarray, " b"]]:
    """Return the rows of every batch of one epoch, without an incomplete last batch.

    The split is shuffled and cut into buckets of `bucket_batches` batches. Inside a bucket, rows
    are sorted by length, so that a batch has rows of similar lengths, and the batches are shuffled.
    If `bucket_batches` is None, the shuffled split is cut into batches without sorting.
    """
    order = permutation(Draw.order, seed, len(lengths))
    number = len(order) // batch_size
    if bucket_batches is None:
        return list(order[: number * batch_size].reshape(-1, batch_size))
    batch_order = random_words(Draw.buckets, seed, number)
    plan = []
    for first in range(0, number, bucket_batches):
        last = min(first + bucket_batches, number)
        bucket = order[first * batch_size : last * batch_size]
        by_length = bucket[np.argsort(lengths[bucket], kind="stable")]
        batches = by_length.reshape(-1, batch_size)
        plan += list(batches[np.argsort(batch_order[first:last], kind="stable")])
    return plan


def evaluation_plan(
    lengths: Int[np.ndarray, " n"], *, batch_size: int, bucket_batches: int | None
) -> list[Int[np.ndarray, " b"]]:
    """Return the rows of every batch: each row once, the longest first.

    So a batch that does not fit into memory comes at once. If `bucket_batches` is None, the rows
    stay in the order of the split.
    """
    grouped = bucket_batches is not None
    order = np.argsort(-lengths, kind="stable") if grouped else np.arange(len(lengths))
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def check_ranks(*, batch_size: int, rank: int, ranks: int) -> None:
    """Raise ValueError unless `batch_size` is 1 or more and `rank` is one of `ranks`."""
    if batch_size < 1 or not 0 <= rank < ranks:
        raise ValueError(
            "batch_size must be at least 1, and rank from 0 to ranks - 1: got "
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
    """Return the rows of each batch of this rank.

    All ranks together read the batches that one rank with `batch_size * ranks` rows would read.
    Rank r takes rows r, r + ranks, … of such a batch, so that all ranks have similar lengths.
    """
    check_ranks(batch_size=batch_size, rank=rank, ranks=ranks)
    together = batch_size * ranks
    if train:
        if len(lengths) < together:
            raise ValueError(
                f"batch_size={batch_size} on ranks={ranks} needs at least {together} training "
                f"examples: the split has {len(lengths)}; lower the batch size"
            )
        plan = training_plan(lengths, batch_size=together, seed=seed, bucket_batches=bucket_batches)
    else:
        plan = evaluation_plan(lengths, batch_size=together, bucket_batches=bucket_batches)
    of_rank = (rows[rank::ranks] for rows in plan)
    return [rows for rows in of_rank if len(rows)]


def check_lengths(
    name: str,
    *,
    max_length: int,
    bucket_batches: int | None,
    padded_length: int | None = None,
    most: int = LONGEST,
) -> None:
    """Raise ValueError unless a task with stored rows can have these options.

    `name` is the task's name in messages, and `most` the largest `max_length`.
    """
    if not 1 <= max_length <= most or (bucket_batches is not None and bucket_batches < 1):
        limit = "at least 1" if most == LONGEST else f"from 1 to {most}"
        raise ValueError(
            f"{name}: max_length must be {limit}, and bucket_batches at least 1, or null: got "
            f"max_length={max_length}, bucket_batches={bucket_batches}"
        )
    if padded_length is not None and padded_length < max_length:
        raise ValueError(
            f"{name}: padded_length must be at least max_length={max_length}: got "
            f"padded_length={padded_length}; wanted {max_length} or more, or null to pad to the "
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
    """Return a batch of some stored examples, cut to `max_length` tokens and padded with 0.

    Args:
        split: The stored examples.
        rows: Numbers of the examples in the batch.
        max_length: Most tokens of a row; longer sequences are cut.
        shift: Added to every stored token that is no real number; 1 turns bytes into ids.
        padded_length: Number of tokens to which rows are padded; None: those of the longest row.
        words: A random word for each sequence, which decides where the piece of a longer sequence
            begins; None: at the start.
    """
    parts, sequences = split.parts, split.sequences(rows)
    flat, starts = split.tokens, split.offsets[sequences]
    stored_lengths = split.offsets[sequences + 1] - starts
    lengths = np.minimum(stored_lengths, max_length)
    if words is not None:
        choices = (stored_lengths - lengths + 1).astype(np.uint64)
        starts = starts + (words % choices).astype(starts.dtype)
    longest = padded_length or int(lengths.max())
    full = bool((lengths == longest).all())
    # Copy rows in the stored type, and convert all at once: twice as fast as row by row. If they
    # begin at multiples of their one length, the stored tokens are a table with a row for each.
    if full and len(flat) % longest == 0 and bool((starts == sequences * longest).all()):
        narrow = flat.reshape(-1, longest)[sequences]
    else:
        narrow = np.zeros((len(sequences), longest), flat.dtype)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            narrow[row, :length] = flat[start : start + length]
    keep = None if full else np.arange(longest) < lengths[:, None]
    tokens: Int64[np.ndarray, "b l"] | Float32[np.ndarray, "b l"]
    if flat.dtype == np.float32:
        tokens = narrow
    else:
        tokens = np.add(narrow, shift if keep is None else shift * keep, dtype=np.int64)
    real = split.targets.dtype == np.float32
    return Batch(
        tokens=torch.from_numpy(tokens).view(-1, parts, longest),
        target=torch.from_numpy(split.targets[rows].astype(np.float32 if real else np.int64)),
        index=torch.from_numpy(rows.astype(np.int64)),
        keep=None if keep is None else torch.from_numpy(keep).view(-1, parts, longest),
    )

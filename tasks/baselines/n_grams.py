"""Baselines that read only a few tokens at a time: linear classifiers of bags of n-grams.

    bag of tokens   which tokens occur, and how often; their order is lost
    n-grams         which runs of 1 … 4 neighbours occur: a window of 4 tokens

They read exactly what a model reads: sequences cut to the same length, without padding. A run never
includes tokens from both sides of a masked position.

A feature is a run of tokens, hashed to one of 2^16 buckets. The logits of an example are the sum of
the weights of its features, divided by the square root of their number. An example of two texts has
the features of each text, and further features for runs that both texts contain. Adam fits the
weights on at most 20,000 training examples for 3 epochs. A model of long sequences has to beat this
score; other n-gram classifiers reach higher ones. Every table prints what the score means.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int, UInt64
from torch import nn
from torch.nn.functional import cross_entropy

from lra.tasks.baselines.seen_examples import RealTokens, SeenExamples
from lra.tasks.data.bars import tqdm
from lra.tasks.data.batching import Draw, permutation

BUCKETS = 1 << 16
FIT_EXAMPLES = 20_000
EPOCHS = 3
BATCH = 64
RATE = 0.02
CACHED_TOKENS = 4096
"""Tokens that are counted together, so that their features fit into the processor's cache."""
SHARED = np.uint64(0x5D1A7C0FFEE1)
"""Changes the hashes of features of a second text, and of those that both texts have, so that they
fall into other buckets than the features of a first text."""
DISTINCT_FEATURES = 1 << 22
"""Two features count as the same in both texts if their hashes agree modulo this number."""

Bags: TypeAlias = Float32[torch.Tensor, "b f"]
"""Features of some examples: how often each occurs."""


def mix_bits(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Return a hash of each 64-bit number (the finaliser of SplitMix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def runs(
    real: RealTokens, longest_run: int
) -> tuple[UInt64[np.ndarray, " f"], Int[np.ndarray, " f"]]:
    """Return a hash of each run of 1 to `longest_run` adjacent tokens, and the row of each run."""
    run_hashes = token_hashes = mix_bits(real.tokens.astype(np.uint64))
    # One number for row and position: 1 apart for neighbours, but no run reaches the next row.
    stride = int(real.position.max(initial=0)) + longest_run + 1
    place = real.row * stride + real.position
    hashes, rows = [run_hashes], [real.row]
    for length in range(2, longest_run + 1):
        run_hashes = mix_bits(run_hashes[:-1] * np.uint64(3) + token_hashes[length - 1 :])
        adjacent = place[length - 1 :] - place[: len(run_hashes)] == length - 1
        hashes.append(run_hashes[adjacent])
        rows.append(real.row[: len(run_hashes)][adjacent])
    return np.concatenate(hashes), np.concatenate(rows)


def bags(data: SeenExamples, examples: Int[np.ndarray, " b"], longest_run: int) -> Bags:
    """Return the features [b, BUCKETS] of some examples; see `counts`."""
    parts = [counts(data, chunk, longest_run) for chunk in _split_examples(data, examples)]
    return torch.from_numpy(np.concatenate(parts))


def _split_examples(data: SeenExamples, examples: Int[np.ndarray, " b"]) -> list[np.ndarray]:
    """Split `examples` into groups of about `CACHED_TOKENS` tokens."""
    lengths = data.lengths[examples] * data.parts
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // CACHED_TOKENS)) + 1
    return np.split(examples, cuts)


def counts(
    data: SeenExamples, examples: Int[np.ndarray, " b"], longest_run: int
) -> Float32[np.ndarray, "b f"]:
    """Count the features of each example by bucket, and divide by the root of their total.

    Returns [b, BUCKETS] with b = len(examples), all of which are in memory together. If an example
    has two texts, its rows in `data.read` alternate between text 1 and text 2.
    """
    number = len(examples)
    with np.errstate(over="ignore"):
        hashes, example = runs(data.read(examples), longest_run)
        if data.parts > 1:
            second, example = example % data.parts == 1, example // data.parts
            common, common_example = _common_features(hashes, example, second, number)
            hashes = np.where(second, mix_bits(hashes ^ SHARED), hashes)
            hashes = np.concatenate([hashes, common])
            example = np.concatenate([example, common_example])
    slots = example * BUCKETS + (hashes % np.uint64(BUCKETS)).astype(np.int64)
    counted = np.zeros(number * BUCKETS, np.float32)
    np.add.at(counted, slots, np.float32(1))
    total = np.bincount(example, minlength=number)
    # NumPy divides a slot that occurs twice in `slots` only once.
    counted[slots] /= np.sqrt(total, dtype=np.float32)[example]
    return counted.reshape(number, BUCKETS)


def _common_features(
    hashes: np.ndarray, owner: np.ndarray, second: np.ndarray, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features that occur in both texts of an example, once each, and their examples.

    Each of the f features has a hash, an example (`owner`), and `second`: is it from text 2?
    """
    in_first = np.zeros(DISTINCT_FEATURES, bool)
    common, examples = [], []
    for example in range(number):
        of_example = owner == example
        first, other = (
            (hashes[of_example & part] % np.uint64(DISTINCT_FEATURES)).astype(np.int64)
            for part in (~second, second)
        )
        in_first[first] = True
        both = np.unique(other[in_first[other]])
        in_first[first] = False  # faster than a new array for each example
        common.append(both)
        examples.append(np.full(len(both), example))
    return mix_bits(np.concatenate(common).astype(np.uint64) + SHARED), np.concatenate(examples)


def n_gram_answers(
    train: SeenExamples, data: SeenExamples, *, classes: int, longest_run: int, name: str
) -> Bool[np.ndarray, " n"]:
    """Fit a linear classifier on `train`; return for each example of `data` whether it is correct.

    A feature has at most `longest_run` tokens. The progress bar shows `name`.
    """
    chosen = permutation(Draw.order, 0, len(train.targets))[:FIT_EXAMPLES]
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws numbers, which zeros replace
        model = nn.Linear(BUCKETS, classes)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        for epoch in range(EPOCHS):
            order = chosen[permutation(Draw.order, 1 + epoch, len(chosen))]  # seed 0 chose them
            for batch in _split_batches(order, f"{name}: epoch {epoch + 1} of {EPOCHS}"):
                targets = torch.from_numpy(train.targets[batch].astype(np.int64))
                optimiser.zero_grad()
                loss = cross_entropy(model(bags(train, batch, longest_run)), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        hits = []
        with torch.no_grad():
            for batch in _split_batches(np.arange(len(data.targets)), f"{name}: answers"):
                answers = model(bags(data, batch, longest_run)).argmax(1).numpy()
                hits.append(answers == data.targets[batch])
    return np.concatenate(hits)


def _split_batches(order: np.ndarray, title: str) -> Iterator[np.ndarray]:
    """Yield `order` in pieces of `BATCH` examples, with a progress bar of this title."""
    for first in tqdm(range(0, len(order), BATCH), desc=title, unit="batch", disable=None):
        yield order[first : first + BATCH]

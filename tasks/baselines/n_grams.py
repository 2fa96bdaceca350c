"""Baselines that read only a few tokens at a time: linear classifiers of bags of n-grams.

    bag of tokens   which tokens occur, and how often; their order is lost
    n-grams         which runs of 1 … 4 neighbours occur: a window of 4 tokens

They read what a model sees: sequences cut where its own are cut, nothing where it has padding, and
no run across a position that is left out.

A feature is a run of tokens, hashed to one of 2^16 buckets; an example is the sum of the weights of
its features over the square root of their number (of two texts: features of each, and of both where
they agree). Weights are fitted by Adam on at most 20,000 training examples, for 3 epochs: a score
that a model of long sequences has to beat, not the best of its kind. What a score at this level
means stands beside it in every table.
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
SHARED = np.uint64(0x5D1A7C0FFEE1)
"""Distinguishes features that both texts have from those of one text."""
DISTINCT_FEATURES = 1 << 22
"""Features are taken for the same in both texts where they agree modulo this number."""

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
    """Return a hash of each run of 1 to `longest_run` neighbours, and the row that it lies in."""
    running = ones = mix_bits(real.tokens.astype(np.uint64))
    # Neighbours are 1 apart; rows lie further apart than any run is long.
    stride = int(real.position.max(initial=0)) + longest_run + 1
    where = real.row * stride + real.position
    hashes, owners = [running], [real.row]
    for length in range(2, longest_run + 1):
        running = mix_bits(running[:-1] * np.uint64(3) + ones[length - 1 :])
        adjacent = where[length - 1 :] - where[: len(running)] == length - 1
        hashes.append(running[adjacent])
        owners.append(real.row[: len(running)][adjacent])
    return np.concatenate(hashes), np.concatenate(owners)


def bags(data: SeenExamples, examples: Int[np.ndarray, " b"], longest_run: int) -> Bags:
    """Return the hashed features of some examples, over the root of their number."""
    parts = [counts(data, some, longest_run) for some in _chunks(data, examples)]
    return torch.from_numpy(np.concatenate(parts))


def _chunks(data: SeenExamples, examples: Int[np.ndarray, " b"]) -> list[np.ndarray]:
    """Cut into runs of examples whose features stay in the processor's cache."""
    lengths = data.lengths[examples] * data.parts
    cuts = np.flatnonzero(np.diff(np.cumsum(lengths) // CACHED_TOKENS)) + 1
    return np.split(examples, cuts)


def counts(
    data: SeenExamples, examples: Int[np.ndarray, " b"], longest_run: int
) -> Float32[np.ndarray, "b f"]:
    """Count the features of a few examples."""
    number = len(examples)
    with np.errstate(over="ignore"):
        hashes, owner = runs(data.read(examples), longest_run)
        if data.parts > 1:
            second, owner = owner % data.parts == 1, owner // data.parts
            both, whose = _common_features(hashes, owner, second, number)
            hashes = np.where(second, mix_bits(hashes ^ SHARED), hashes)
            hashes, owner = np.concatenate([hashes, both]), np.concatenate([owner, whose])
    slots = owner * BUCKETS + (hashes % np.uint64(BUCKETS)).astype(np.int64)
    counted = np.zeros(number * BUCKETS, np.float32)
    np.add.at(counted, slots, np.float32(1))
    total = np.bincount(owner, minlength=number)
    counted[slots] /= np.sqrt(total, dtype=np.float32)[owner]  # a slot named twice is set twice
    return counted.reshape(number, BUCKETS)


def _common_features(
    hashes: np.ndarray, owner: np.ndarray, second: np.ndarray, number: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features that both texts of an example have, once each, and their examples."""
    seen = np.zeros(DISTINCT_FEATURES, bool)
    common, whose = [], []
    for example in range(number):
        of_example = owner == example
        first, other = (
            (hashes[of_example & part] % np.uint64(DISTINCT_FEATURES)).astype(np.int64)
            for part in (~second, second)
        )
        seen[first] = True
        both = np.unique(other[seen[other]])
        seen[first] = False
        common.append(both)
        whose.append(np.full(len(both), example))
    return mix_bits(np.concatenate(common).astype(np.uint64) + SHARED), np.concatenate(whose)


def n_gram_answers(
    train: SeenExamples, data: SeenExamples, *, classes: int, longest_run: int, name: str
) -> Bool[np.ndarray, " n"]:
    """Fit on `train`; return for each example of `data` whether the answer is correct."""
    chosen = permutation(Draw.order, 0, len(train.targets))[:FIT_EXAMPLES]
    with torch.random.fork_rng(devices=[]):
        model = nn.Linear(BUCKETS, classes)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
        for epoch in range(EPOCHS):
            order = chosen[permutation(Draw.order, 1 + epoch, len(chosen))]
            for some in _pieces(order, f"{name}, epoch {epoch + 1} of {EPOCHS}"):
                targets = torch.from_numpy(train.targets[some].astype(np.int64))
                optimiser.zero_grad()
                loss = cross_entropy(model(bags(train, some, longest_run)), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        hits = []
        with torch.no_grad():
            for some in _pieces(np.arange(len(data.targets)), f"{name}, answers"):
                guess = model(bags(data, some, longest_run)).argmax(1).numpy()
                hits.append(guess == data.targets[some])
    return np.concatenate(hits)


def _pieces(order: np.ndarray, what: str) -> Iterator[np.ndarray]:
    for first in tqdm(range(0, len(order), BATCH), desc=what, unit="batch", disable=None):
        yield order[first : first + BATCH]

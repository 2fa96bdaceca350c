"""Floors that see no further than a few tokens: linear classifiers of bags of n-grams.

    bag of tokens   which tokens occur, and how often; their order is lost
    n-grams         which runs of 1 … 4 neighbours occur: a window of 4 tokens

A feature is a run of tokens, hashed to one of 2^18 places; an example is the sum of the weights of
its features over the square root of their number (of two texts: features of each, and of both where
they agree). Weights are fitted by sparse Adam on at most 20,000 training examples, for 3 epochs: a
score that a model of long sequences has to beat, not the best of its kind. What a score at this
level means is said beside it in every table.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Integer, UInt64
from torch import nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from tasks.batching import Draw, permutation
from tasks.ragged import Ragged

PLACES = 1 << 18
FIT_EXAMPLES = 20_000
EPOCHS = 3
BATCH = 64
RATE = 0.02
LONGEST = 4096
"""Tokens of a sequence that are looked at."""
SHARED = np.uint64(0x5D1A7C0FFEE1)
"""Told apart from the features of one text: those that both texts have."""


class Bags(NamedTuple):
    """Features of some examples, one after another."""

    features: Int[np.ndarray, " f"]
    starts: Int[np.ndarray, " b"]


def mixed(values: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    """Return a hash of each 64-bit number (the finaliser of SplitMix64)."""
    z = values + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def runs(
    rows: Sequence[Integer[np.ndarray, " _"]], longest_run: int
) -> tuple[UInt64[np.ndarray, " f"], Int[np.ndarray, " f"]]:
    """Return a hash of each run of 1 to `longest_run` tokens, and the row that it lies in."""
    cut = [row[:LONGEST] for row in rows]
    owner = np.repeat(np.arange(len(cut)), [len(row) for row in cut])
    running = ones = mixed(np.concatenate(cut).astype(np.uint64))
    found, owners = [running], [owner]
    for length in range(2, longest_run + 1):
        running = mixed(running[:-1] * np.uint64(3) + ones[length - 1 :])
        first, last = owner[: len(running)], owner[length - 1 :]
        found.append(running[first == last])
        owners.append(first[first == last])
    return np.concatenate(found), np.concatenate(owners)


def bags(data: Ragged, examples: Int[np.ndarray, " b"], longest_run: int) -> Bags:
    """Return the hashed features of some examples."""
    number = len(examples)
    with np.errstate(over="ignore"):
        hashes, owner = runs(data.rows(examples), longest_run)
        if data.parts > 1:
            place, owner = owner % data.parts, owner // data.parts
            both, whose = _shared(hashes, owner, place)
            hashes = np.where(place == 0, hashes, mixed(hashes ^ SHARED))
            hashes, owner = np.concatenate([hashes, both]), np.concatenate([owner, whose])
    order = np.argsort(owner, kind="stable")
    features = (hashes[order] % np.uint64(PLACES)).astype(np.int64)
    return Bags(features, np.searchsorted(owner[order], np.arange(number)).astype(np.int64))


def _shared(
    hashes: np.ndarray, owner: np.ndarray, place: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features that both texts of an example have, once each, and their examples."""
    # One number for a feature of an example, so that the whole batch is one intersection.
    own = mixed(hashes ^ mixed(owner.astype(np.uint64)))
    _, first, _ = np.intersect1d(own[place == 0], own[place == 1], return_indices=True)
    return mixed(hashes[place == 0][first] + SHARED), owner[place == 0][first]


class Linear(nn.Module):
    """Sums of weights of features, over the root of their number."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(PLACES, classes, mode="sum", sparse=True)
        nn.init.zeros_(self.weights.weight)

    def forward(self, bag: Bags) -> torch.Tensor:
        """Return logits [b, classes]."""
        features, starts = (torch.from_numpy(part) for part in bag)
        number = torch.diff(starts, append=torch.tensor([len(features)]))
        summed: torch.Tensor = self.weights(features, starts)
        return summed / number[:, None].sqrt()


def answers(
    train: Ragged, data: Ragged, *, classes: int, longest_run: int, name: str
) -> Bool[np.ndarray, " n"]:
    """Fit on `train`; return for each example of `data` whether the answer is right."""
    chosen = permutation(Draw.order, 0, len(train.targets))[:FIT_EXAMPLES]
    with torch.random.fork_rng(devices=[]):
        model = Linear(classes)
        optimiser = torch.optim.SparseAdam(model.parameters(), lr=RATE)
        for epoch in range(EPOCHS):
            order = chosen[permutation(Draw.order, 1 + epoch, len(chosen))]
            for some in _pieces(order, f"{name}, epoch {epoch + 1} of {EPOCHS}"):
                targets = torch.from_numpy(train.targets[some].astype(np.int64))
                optimiser.zero_grad()
                loss = cross_entropy(model(bags(train, some, longest_run)), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()  # type: ignore[no-untyped-call]
        hits = []
        with torch.no_grad():
            for some in _pieces(np.arange(len(data.targets)), f"{name}, answers"):
                guess = model(bags(data, some, longest_run)).argmax(1).numpy()
                hits.append(guess == data.targets[some])
    return np.concatenate(hits)


def _pieces(order: np.ndarray, what: str) -> Iterator[np.ndarray]:
    for first in tqdm(range(0, len(order), BATCH), desc=what, unit="batch", disable=None):
        yield order[first : first + BATCH]

r"""Which share of the text of one split occurs in another split, measured by runs of 50 bytes.

    train   …he read the letter twice and put it back into the drawer…
    test    Chapter 2\n|he read the letter twice and put i|t back into the drawer…|

A comparison of whole examples would miss a copy with another heading. So each sequence of a split
is cut into runs, at most `MOST_RUNS` of them are taken at equal distances, and each is searched at
every position of the other split by a rolling hash of 64 bits.

Language repeats itself: in real data, 0.06 % (PG-19) to 1.7 % (a prefix of enwik8) of the runs of
test occur in train, and more if train is longer (enwik8: 0.2 % for each doubling).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped, UInt64

RUN_BYTES = 50
MOST_RUNS = 100_000
MUCH = 0.1
"""Share in train above which a remark is stored; language alone repeats much less."""
AT_ONCE = 1 << 16
"""Positions that are hashed together, so that the hashes fit into the processor's cache."""
BASE = 0x9E3779B97F4A7C15
"""Base of the rolling hash: an odd number with random bits."""
FIRST_BITS = 22
"""Leading bits of a hash; comparing them first excludes nearly all positions quickly."""


class Sequences(NamedTuple):
    """Sequence i of a split is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: Shaped[np.ndarray, " t"]
    offsets: Int[np.ndarray, " s_plus_1"]


def run_shares(splits: Mapping[str, Sequences], run: int) -> dict[tuple[str, str], float]:
    """Return, by (split, earlier split), the share (0 to 1) of the split's runs in the earlier one.

    Args:
        splits: Sequences of each split; runs of later splits are searched in earlier ones.
        run: Number of tokens of a run. A split with only shorter sequences is skipped.
    """
    shares, names = {}, list(splits)
    hashes = {split: _hash_runs(*splits[split], run) for split in names[1:]}
    for number, earlier in enumerate(names):
        later = [name for name in names[number + 1 :] if len(hashes[name])]
        if later:
            wanted = np.unique(np.concatenate([hashes[name] for name in later]))
            occurs = _search_hashes(wanted, splits[earlier].tokens, run)
            for name in later:
                positions = np.searchsorted(wanted, hashes[name])
                shares[name, earlier] = float(occurs[positions].mean())
    return shares


def overlap_sentence(found: Mapping[tuple[str, str], float]) -> str:
    """Return a sentence with the shares of `run_shares`; "" if all are 0."""
    parts = [
        f"{share:.2%} of the text of {split} is in {earlier} as well"
        for (split, earlier), share in found.items()
        if share > 0
    ]
    joined = "; ".join(parts)
    return f"{joined} (compared in pieces of about {RUN_BYTES} bytes)" if parts else ""


def overlap_remarks(found: Mapping[tuple[str, str], float]) -> dict[str, str]:
    """Return a remark for readers of scores, for each split of which train has more than `MUCH`."""
    return {
        split: f"{share:.2%} of the text of {split} is in train as well (compared in pieces of "
        f"about {RUN_BYTES} bytes), so the {split} score does not measure new text"
        for (split, earlier), share in found.items()
        if earlier == "train" and share > MUCH
    }


def _hash_runs(
    tokens: Shaped[np.ndarray, " t"], offsets: Int[np.ndarray, " s_plus_1"], run: int
) -> UInt64[np.ndarray, " r"]:
    """Return the hashes of at most `MOST_RUNS` runs at equal distances, each in one sequence."""
    runs_of_sequence = np.diff(offsets) // run
    before = np.cumsum(runs_of_sequence) - runs_of_sequence  # runs of all earlier sequences
    number = int(runs_of_sequence.sum())
    # Every k-th of all runs, numbered through all sequences; k is rounded up, and at least 1.
    taken = np.arange(0, number, -(-number // MOST_RUNS) or 1)
    sequence = np.searchsorted(before, taken, "right") - 1  # of each run that is taken
    starts = offsets[sequence] + (taken - before[sequence]) * run
    hashes = np.zeros(len(starts), np.uint64)
    for position in range(run):
        hashes = hashes * np.uint64(BASE) + tokens[starts + position].astype(np.uint64)
    return hashes


def _search_hashes(
    wanted: UInt64[np.ndarray, " w"], tokens: Shaped[np.ndarray, " t"], run: int
) -> Bool[np.ndarray, " w"]:
    """Return which of the sorted hashes `wanted` belong to a run at any position of `tokens`."""
    shift = np.uint64(64 - FIRST_BITS)
    likely = np.zeros(1 << FIRST_BITS, bool)  # which leading bits a wanted hash has
    likely[wanted >> shift] = True
    occurs = np.zeros(len(wanted), bool)
    for first in range(0, len(tokens) - run + 1, AT_ONCE):
        hashes = _hash_positions(tokens[first : first + AT_ONCE + run - 1].astype(np.uint64), run)
        hashes = hashes[likely[hashes >> shift]]
        nearest = np.minimum(np.searchsorted(wanted, hashes), len(wanted) - 1)
        occurs[nearest[wanted[nearest] == hashes]] = True
    return occurs


def _hash_positions(tokens: UInt64[np.ndarray, " t"], run: int) -> UInt64[np.ndarray, " u"]:
    """Return the hash of the run at each position: Σ BASE^(run - 1 - i) · token i, modulo 2^64.

    The width of a run grows by doubling and by adding 1, along the bits of `run`.
    """
    hashes, width = tokens, 1
    for bit in f"{run:b}"[1:]:
        hashes = hashes[:-width] * np.uint64(pow(BASE, width, 1 << 64)) + hashes[width:]
        width *= 2
        if bit == "1":
            hashes = hashes[:-1] * np.uint64(BASE) + tokens[width:]
            width += 1
    return hashes

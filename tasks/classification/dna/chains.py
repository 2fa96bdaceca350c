"""A sample of DNA: Markov chains of order 3, one for each class, whose best score is known.

A chain draws each base from the three bases before it. In class c, the base d follows a, b, e with
probability WEIGHTS[(d - a - SHIFTS[c, b, e]) mod 4]. Under each chain, all runs of three bases are
equally frequent: for fixed b, e and d, the sum over a is 1. So the accuracy of a classifier that
reads at most three neighbours is that of chance.

The best possible classifier knows these numbers and compares the probabilities of a sequence under
the chains. Its accuracy is the ceiling of the task.
"""

import numpy as np
from jaxtyping import Float64, Integer

from lra.tasks.classification.dna.files import DnaRow
from lra.tasks.data.batching import Draw, random_words

CLASSES = ("chain 0", "chain 1")
SIZES = {"train": 1000, "test": 400}
ORDER = 3
SHORTEST, LONGEST = 32, 160
"""Numbers of bases of a sequence; all from the one to the other are equally frequent."""
WEIGHTS = np.array([0.34, 0.26, 0.22, 0.18])
SHIFTS = (random_words(Draw.sample, 8, len(CLASSES) * 16) >> np.uint64(62)).reshape(-1, 4, 4)


def transitions() -> Float64[np.ndarray, "c 4 4 4 4"]:
    """Return, for each class and the three bases before, the probability of each base."""
    a, d = np.arange(4)[:, None, None, None], np.arange(4)
    table: np.ndarray = WEIGHTS[(d - a - SHIFTS.astype(np.int64)[:, None, :, :, None]) % 4]
    return table


def sample_rows(split: str, width: int | None) -> list[DnaRow]:
    """Return the sequences of `train` or `test`, with classes alternating.

    All have `width` bases; None: `SHORTEST` to `LONGEST`.
    """
    number, seed = SIZES[split], list(SIZES).index(split)
    shortest, longest = (SHORTEST, LONGEST) if width is None else (width, width)
    words = random_words(Draw.sample, 16 + seed, number * (1 + longest)).reshape(number, -1)
    labels, uniform = np.arange(number) % len(CLASSES), (words[:, 1:] >> np.uint64(11)) / 2**53
    lengths = shortest + (words[:, 0] % np.uint64(longest - shortest + 1)).astype(np.int64)
    bases = (uniform * 4).astype(np.int64)  # the first three bases, and places for the others
    ends = transitions().cumsum(-1)[..., :-1]
    for place in range(ORDER, longest):
        before = (labels, bases[:, place - 3], bases[:, place - 2], bases[:, place - 1])
        bases[:, place] = (uniform[:, place, None] >= ends[before]).sum(1)
    rows = bases.astype(np.uint8)
    return [
        DnaRow(row[:length], int(label))
        for row, length, label in zip(rows, lengths, labels, strict=True)
    ]


def best_answer(row: Integer[np.ndarray, " l"]) -> int:
    """Return the class under whose chain a sequence is most probable, the first one if equal."""
    number = max(0, len(row) - ORDER)
    first, second, third, last = (row[start : start + number] for start in range(ORDER + 1))
    return int(np.log(transitions()[:, first, second, third, last]).sum(1).argmax())

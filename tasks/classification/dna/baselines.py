"""Baselines of DNA: naive Bayes of runs of bases (k-mers), the share of G and C, and the length.

They are fitted on at most 20,000 training sequences, and read what a model reads. Lower case counts
as upper case. In both strands of a sequence, the runs of both are counted.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from lra.tasks.baselines.n_grams import FIT_EXAMPLES
from lra.tasks.baselines.seen_examples import SeenExamples
from lra.tasks.classification.dna.alphabet import BASES
from lra.tasks.data.batching import Draw, permutation

LONGEST_RUN = 6
BINS = 20
"""Most intervals into which a number is divided, each with as many training sequences."""
FEWEST = 25
"""Training sequences of an interval, at least."""


def _chosen(train: SeenExamples) -> Int[np.ndarray, " m"]:
    """Return the numbers of the training sequences on which baselines are fitted."""
    return permutation(Draw.order, 0, len(train.targets))[:FIT_EXAMPLES]


def run_codes(row: Int[np.ndarray, " l"], length: int) -> Int[np.ndarray, " r"]:
    """Return a number for each run of `length` neighbours: their letters as digits of base 5."""
    number = max(0, len(row) - length + 1)
    codes = np.zeros(number, np.int64)
    for start in range(length):
        codes = codes * BASES + row[start : start + number] % BASES
    return codes


def run_answers(
    train: SeenExamples, data: SeenExamples, *, classes: int, length: int
) -> Bool[np.ndarray, " n"]:
    """Return for each example of `data` whether naive Bayes of runs of `length` bases is correct.

    The probability of a run in a class is its frequency in train, with 1 added to each count.
    """
    chosen = _chosen(train)
    targets = train.targets[chosen].astype(np.int64)
    counts = np.ones((classes, BASES**length))
    for place, row in enumerate(train.rows(chosen)):
        codes = run_codes(row, length)
        np.add.at(counts[targets[place // train.parts]], codes, 1)
    logs = np.log(counts) - np.log(counts.sum(1, keepdims=True))
    scores = np.tile(np.log(1 + np.bincount(targets, minlength=classes)), (len(data.targets), 1))
    for place, row in enumerate(data.rows(np.arange(len(data.targets)))):
        scores[place // data.parts] += logs[:, run_codes(row, length)].sum(1)
    hits: np.ndarray = scores.argmax(1) == data.targets
    return hits


def shares_of_gc(data: SeenExamples, examples: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return the share of G and C among the bases of each example; both strands have the same."""
    letters = [row % BASES for row in data.rows(examples)][:: data.parts]
    return np.array([((row == 1) | (row == 2)).mean() for row in letters])


def number_answers(
    fitted: Float[np.ndarray, " m"], targets: Int[np.ndarray, " m"], values: Float[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Return for each of `values` the most frequent class of `fitted` numbers in its interval.

    Intervals contain equally many of the `fitted` numbers, if these differ.
    """
    bins = max(1, min(BINS, len(fitted) // FEWEST))
    edges = np.unique(np.quantile(fitted, np.arange(1, bins) / bins))
    table = np.zeros((len(edges) + 1, int(targets.max()) + 1), np.int64)
    np.add.at(table, (np.searchsorted(edges, fitted, side="right"), targets), 1)
    table[table.sum(1) == 0] = table.sum(0)  # an interval that no training sequence is in
    answers: np.ndarray = table.argmax(1)[np.searchsorted(edges, values, side="right")]
    return answers


def further_outcomes(
    train: SeenExamples, data: SeenExamples, classes: int
) -> dict[str, tuple[Bool[np.ndarray, " n"], str]]:
    """Return, by the name of each baseline, whether each example is correct, and what it means."""
    found = {
        f"k_mers_{length}": (
            run_answers(train, data, classes=classes, length=length),
            f"This baseline counts {'bases' if length == 1 else f'runs of {length} bases'} (naive "
            "Bayes). A model with this score may use no longer context.",
        )
        for length in range(1, LONGEST_RUN + 1)
    }
    chosen, every = _chosen(train), np.arange(len(data.targets))
    targets = train.targets[chosen].astype(np.int64)
    gc = number_answers(shares_of_gc(train, chosen), targets, shares_of_gc(data, every))
    lengths = number_answers(
        train.lengths[chosen].astype(float), targets, data.lengths.astype(float)
    )
    return found | {
        "gc_content": (
            gc == data.targets,
            "This baseline reads only the share of G and C. A model with this score may use no "
            "more than the composition of a sequence.",
        ),
        "length_alone": (
            lengths == data.targets,
            "This baseline reads only the length of a sequence. A model with this score may have "
            "read no base.",
        ),
    }

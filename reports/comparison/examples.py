"""Compare the answers of two models to the same test examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra.reports.comparison.numbers import Numbers, Row
from lra.reports.labels import labels_of
from lra.reports.statistics.intervals import Interval, Uncertainty, mean_interval
from lra.reports.statistics.paired_examples import example_variance, mcnemar_p
from lra.reports.statistics.paired_tests import share_difference_interval
from lra.reports.tables.scores import ACCURACY

OTHER_EXAMPLES = (
    "the two sides were tested on different examples, so their answers cannot be paired by example"
)


def paired_gains(numbers: Numbers, a: Row, b: Row) -> tuple[NDArray[Any], NDArray[Any]] | str:
    """Return the indices of the test examples, and first minus second result of each.

    Instead, it returns a reason if both sides have answers, but to different examples, and "" if
    one of them has no stored answers, or answers that do not give the stored accuracy.
    """
    if numbers.metric != ACCURACY.metric:
        return ""
    of_a, of_b = (numbers.hits(str(row["cell"]), numbers.split) for row in (a, b))
    if not of_a or not of_b:
        return ""
    (examples_of_a, hits_of_a), (examples_of_b, hits_of_b) = of_a, of_b
    if not np.array_equal(examples_of_a, examples_of_b):
        return OTHER_EXAMPLES
    gains = np.subtract(hits_of_a, hits_of_b, dtype=np.float64)
    # the stored answers must give the stored accuracies
    fits = gains.size > 1 and abs(gains.mean() - (a["value"] - b["value"])) < 1e-6
    return (examples_of_a, gains) if fits else ""


def variance_from_examples(
    numbers: Numbers, pairs: Mapping[Any, Sequence[tuple[Row, Row]]]
) -> tuple[tuple[float, ...], str]:
    """Return the variance of a mean difference that comes from test examples, in a tuple.

    The tuple is empty if the answers cannot be paired; the second value may then be a reason.

    Args:
        numbers: the numbers that are compared.
        pairs: the pairs of runs of each seed, at least two seeds.
    """
    of_seeds, first_examples = [], None
    for of_seed in pairs.values():
        found = [paired_gains(numbers, a, b) for a, b in of_seed]
        gains = []
        for result in found:
            if isinstance(result, str):
                return (), result
            examples, gain = result
            first_examples = examples if first_examples is None else first_examples
            if not np.array_equal(examples, first_examples):
                return (), "the seeds were tested on different examples"
            gains.append(gain)
        of_seeds.append(np.mean(gains, axis=0))
    return (example_variance(np.stack(of_seeds)),), ""


def interval_over_examples(numbers: Numbers, a: Row, b: Row) -> tuple[Interval | None, int, str]:
    """Return an interval for the difference of two trained models over test examples.

    Returns:
        The interval, the number of examples, and words about how the interval was computed. They
        are (None, 0, "") if the metric is not accuracy or the number of examples is unknown.
    """
    words = (
        ". The interval says how the difference of these two trained models varies with the test "
        "examples; it treats their answers as "
    )
    if numbers.metric != ACCURACY.metric:
        return None, 0, ""
    found = paired_gains(numbers, a, b)
    if not isinstance(found, str):
        _, gains = found
        words += "paired"
        if (np.abs(gains) == gains**2).all():  # no example has several answers
            first, second = int((gains > 0).sum()), int((gains < 0).sum())
            words += (
                f". {first:,} examples are answered correctly only by the first and {second:,} "
                f"only by the second (McNemar's exact test of these two trained models: p = "
                f"{mcnemar_p(first, second):.2g})"
            )
        return mean_interval([*gains], Uncertainty.examples), gains.size, words
    counts = [int(labels_of(row["labels"]).get("examples", 0)) for row in (a, b)]
    if not all(counts):
        return None, 0, ""
    shares = [(min(1.0, float(r["value"])), n) for r, n in zip((a, b), counts, strict=True)]
    interval = share_difference_interval(shares[0], shares[1])
    reason = f"; {found}" if found else ""
    return interval, min(counts), f"{words}independent (Newcombe's interval){reason}"

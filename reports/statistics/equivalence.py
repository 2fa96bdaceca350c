"""Equivalence tests: is a mean difference within a margin that was stated beforehand?

A large p-value of a test of zero difference is no evidence of equality. Two one-sided tests
(Schuirmann 1987) reverse the hypotheses: p is small if both ends of the 90 % interval of the
difference lie within the margin.
"""

from scipy import special

from lra.reports.statistics.paired_tests import MeanDifference


def equivalence_p(difference: MeanDifference, margin: float) -> float | None:
    """Return the p-value of a true difference outside [-margin, margin]; None without a test."""
    return _one_sided_p(difference, abs(difference.mean) - margin)


def excess_p(difference: MeanDifference, margin: float) -> float | None:
    """Return the p-value of a true difference of at most `margin`; None without a test."""
    return _one_sided_p(difference, margin - difference.mean)


def _one_sided_p(difference: MeanDifference, distance: float) -> float | None:
    """Return the probability that Student's t of the difference is below `distance`."""
    if difference.error is None:
        return None
    return float(special.stdtr(difference.pairs - 1, distance / difference.error))

"""Which ranks of a published table can survive: tests from its accuracies alone.

    var(accuracy) = accuracy (1 - accuracy) / examples + spread^2 / seeds

Accuracies of two models are compared by a normal test that treats them as independent. A paper has
no answers to single examples; with them, a paired test finds smaller differences.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from scipy import special

from lra.conf.short_values import number_of
from lra.reports.statistics.intervals import LEVEL, UPPER
from lra.reports.statistics.paired_tests import ALPHA, holm
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.table import Column, Entry, Table

MEAN = "mean"
"""The title of the column with the means of all others."""
_GAP = "the table has no number here, so the model has no rank in this column and no mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """A published table of accuracies, from 0 to 1."""

    name: str
    accuracies: Mapping[str, Mapping[str, float | None]]
    """The accuracy of each model in each column; None where the table has none."""
    examples: Mapping[str, int]
    """The number of test examples of each column."""
    spread: Mapping[str, float]
    """The standard deviation between seeds, by column."""
    seeds: int
    """How many seeds are behind a number, as their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedColumn:
    """The models of one column, the best first, and which of their ranks can survive."""

    models: tuple[str, ...]
    values: tuple[float, ...]
    ranges: tuple[tuple[int, int], ...]
    """The best and the worst rank that the tests leave possible, by model."""
    differ: tuple[bool, ...]
    """Whether each model differs significantly from the next one."""
    least: float
    """The smallest significant difference of a single pair in the middle of the column."""


def ranked_columns(claims: Claims) -> dict[str, RankedColumn]:
    """Return each column of a table, and the mean of several, with the ranks that can survive.

    Holm's method corrects the tests of neighbours in a column together, and so those of all pairs,
    which give the ranges of ranks. The mean is over models without a missing number.
    """
    columns: dict[str, dict[str, tuple[float, float]]] = {}
    for column, examples in claims.examples.items():
        variance = claims.spread[column] ** 2 / claims.seeds
        columns[column] = {
            model: (value, value * (1 - value) / examples + variance)
            for model, cells in claims.accuracies.items()
            if (value := cells.get(column)) is not None
        }
    if (count := len(columns)) > 1:
        columns[MEAN] = {
            model: (math.fsum(v for v, _ in parts) / count, sum(s for _, s in parts) / count**2)
            for model in claims.accuracies
            if len(parts := [c[model] for c in columns.values() if model in c]) == count
        }
    return {name: _ranked(cells) for name, cells in columns.items() if len(cells) > 1}


def _ranked(cells: Mapping[str, tuple[float, float]]) -> RankedColumn:
    """Return a column from the accuracy and the variance of each model."""
    ordered = sorted(cells, key=lambda model: -cells[model][0])
    p = {(a, b): _difference_p(cells[a], cells[b]) for a, b in combinations(ordered, 2)}
    of_pairs = dict(zip(p, holm([*p.values()]), strict=True))
    ranges = tuple(
        (
            1 + sum(of_pairs[other, model] < ALPHA for other in ordered[:index]),
            len(ordered) - sum(of_pairs[model, other] < ALPHA for other in ordered[index + 1 :]),
        )
        for index, model in enumerate(ordered)
    )
    neighbours = holm([p[pair] for pair in pairwise(ordered)])
    _, variance = cells[ordered[len(ordered) // 2]]
    return RankedColumn(
        models=(*ordered,), values=tuple(cells[model][0] for model in ordered), ranges=ranges,
        differ=tuple(value < ALPHA for value in neighbours),
        least=float(special.ndtri(UPPER)) * math.sqrt(2 * variance),
    )  # fmt: skip


def _difference_p(first: tuple[float, float], second: tuple[float, float]) -> float:
    """Return the two-sided p-value of two equal accuracies; each has its value and variance."""
    (a, of_a), (b, of_b) = first, second
    error = math.sqrt(of_a + of_b)
    return float(2 * special.ndtr(-abs(a - b) / error)) if error else float(a == b)


def claims_sentence(columns: Mapping[str, RankedColumn]) -> str:
    """Return how many neighbouring ranks of the last column, usually the mean, differ."""
    name, column = [*columns.items()][-1]
    pairs = [f"{a} > {b}" for (a, b), d in zip(pairwise(column.models), column.differ, strict=True)
             if d]  # fmt: skip
    text = f"{sum(column.differ)} of {len(column.differ)} neighbouring ranks by {name} differ "
    text += f"significantly at {100 * LEVEL:g} %"
    return f"{text}: {', '.join(pairs)}." if pairs else f"{text}."


def claims_table(claims: Claims, columns: Mapping[str, RankedColumn]) -> Table:
    """Return a table: accuracies in percent with the ranks that each of them can have."""
    order: Sequence[str] = [*columns.values()][-1].models
    models = [*order, *(model for model in claims.accuracies if model not in order)]
    entries = {
        (model, name): Entry(
            text=f"{100 * value:.2f} ({low}" + f"–{high})" * (low < high) + ")" * (low == high),
            value=value, facts={"rank_from": low, "rank_to": high},
        )
        for name, column in columns.items()
        for model, value, (low, high) in zip(
            column.models, column.values, column.ranges, strict=True
        )
    }  # fmt: skip
    lines = [
        ("", model, [entries.get((model, name), absent(_GAP)) for name in columns])
        for model in models
    ]
    # The best of a column is bold together with all that may have rank 1.
    lines = [
        (section, model, [replace(e, rank=int(e.facts.get("rank_from") == 1)) for e in line])
        for section, model, line in lines
    ]
    differ = [f"{sum(c.differ)} of {len(c.differ)}" for c in columns.values()]
    least = [f"{100 * c.least:.2f}" for c in columns.values()]
    lines.append(("tests", "neighbouring ranks that differ", [Entry(text=t) for t in differ]))
    lines.append(("tests", "smallest significant difference", [Entry(text=t) for t in least]))
    data = ", ".join(
        f"{name} {claims.examples[name]:,} and {100 * claims.spread[name]:g}"
        for name in columns if name != MEAN
    )  # fmt: skip
    return listed_table(
        lines, [Column(title=name) for name in columns], title=f"Ranks of {claims.name}",
        caption="Accuracies in percent, and in parentheses the ranks that a model may have: "
        f"{100 * LEVEL:g} % tests of all pairs in a column, corrected by Holm's method. Bold: the "
        "models that may have rank 1. Neighbours are tested with a separate correction; the "
        "smallest significant difference is that of a single pair, uncorrected. Tests treat models "
        f"as independent, each number as a mean of {number_of(claims.seeds, 'seed')}. Test "
        "examples, and "
        f"standard deviation between seeds in percentage points: {data}.",
    )  # fmt: skip

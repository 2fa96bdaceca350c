"""Ranks in the columns of a table, and which entries a test tells from the best."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.statistics.paired_tests import holm, mean_difference
from lra.reports.tables.table import Entry, Table

DIFFERS = "*"
"""Stands behind a number that differs significantly from the best of its column."""
RANKS = "Bold: best of the column; underlined: second. "
"""What a caption says where ranks are shown."""
UNRANKED = (
    "A column has no ranks if its best model is not shown to be better than chance and "
    "the baselines. "
)


def rank_columns(
    lines: Sequence[Sequence[Entry]],
    decimals: int,
    *,
    higher: bool,
    floors: Sequence[Sequence[float]] = (),
) -> tuple[list[list[Entry]], str]:
    """Rank the entries of every column, and say what the marks mean.

    Args:
        lines: the entries of each line; what is no result, such as a baseline, is not among them.
        decimals: of a value as printed: what is equal then shares a rank.
        higher: whether higher values are better.
        floors: of every column, scores that need no model: chance and baselines. A column whose
            best is not better than all of these, with its interval, has no ranks.
    """
    if not lines:  # of baselines alone
        return [], ""
    given = [*zip(*lines, strict=True)]
    beaten = [
        _above(column, floor, higher=higher)
        for column, floor in zip(given, floors or [()] * len(given), strict=True)
    ]
    tests = [_tests(column) for column in given]
    columns = [
        _ranked(column, p, decimals, higher=higher) if above else [*column]
        for column, p, above in zip(given, tests, beaten, strict=True)
    ]
    result = [list(line) for line in zip(*columns, strict=True)]
    missing = "" if all(beaten) else UNRANKED
    if not any(entry.rank for line in result for entry in line):
        return result, missing
    if not any(tests):
        words = "Differences are not tested, because no two models share two seeds."
        return result, f"{RANKS}{missing}{words}"
    return result, (
        f"{RANKS}{missing}{DIFFERS}: significantly different from the best (paired t test over "
        f"shared seeds, p < {1 - LEVEL:.2g} by Holm's correction for all pairs in the column)."
    )


def _above(column: Sequence[Entry], floor: Sequence[float], *, higher: bool) -> bool:
    """Tell whether the best of a column is better than scores that need no model."""
    entries = [e for e in column if e.status == "ok" and e.value is not None]
    if not entries:
        return True
    best = (max if higher else min)(entries, key=lambda e: e.value or 0.0)
    return above(best.value or 0.0, best.interval, floor, higher=higher)


def above(value: float, interval: Interval | None, floor: Sequence[float], *, higher: bool) -> bool:
    """Tell whether a score, with its interval, is better than scores that need no model."""
    ends = (interval.low, interval.high) if interval else (value,)
    return all((min(ends) > each) if higher else (max(ends) < each) for each in floor)


def _tests(column: Sequence[Entry]) -> Mapping[tuple[int, int], float]:
    """Return corrected p values of pairs of entries that share seeds, by their places.

    All pairs count, since the best is known from the same numbers.
    """
    raw = {}
    for i, j in combinations(range(len(column)), 2):
        first, second = column[i].by_seed, column[j].by_seed
        shared = [seed for seed in first if seed in second]
        if len(shared) > 1:
            p = mean_difference([first[s] for s in shared], [second[s] for s in shared]).p
            if p is not None:
                raw[i, j] = p
    return dict(zip(raw, holm([*raw.values()]), strict=True))


def _ranked(
    column: Sequence[Entry], p: Mapping[tuple[int, int], float], decimals: int, *, higher: bool
) -> list[Entry]:
    values = {i: e.value for i, e in enumerate(column) if e.status == "ok" and e.value is not None}
    printed = {i: round(value, decimals) for i, value in values.items()}
    first_two = sorted(set(printed.values()), reverse=higher)[:2]
    if len(first_two) < 2:
        return [*column]
    best = (max if higher else min)(values, key=lambda i: values[i])

    def marked(i: int, entry: Entry) -> Entry:
        rank = 1 + first_two.index(printed[i]) if printed[i] in first_two else 0
        differs = rank != 1 and p.get((min(i, best), max(i, best)), 1.0) < 1 - LEVEL
        number, rest = Table.number(entry)
        return replace(entry, rank=rank, text=number + DIFFERS * differs + rest)

    return [marked(i, entry) if i in printed else entry for i, entry in enumerate(column)]

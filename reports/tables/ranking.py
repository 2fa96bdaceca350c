"""Rank the entries of a table's columns, and mark those that differ significantly from the best."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from lra.reports.statistics.intervals import LEVEL, Interval
from lra.reports.statistics.paired_tests import holm, mean_difference
from lra.reports.tables.table import Entry, Table

DIFFERS = "*"
"""Marks a number that differs significantly from the best number of its column."""
RANKS = "The best number of a column is bold, and the second is underlined. "
"""The sentence of a caption if ranks are shown."""
TIES = (
    "Numbers that were tested and do not differ significantly from the best are bold, too, as one "
    "group. "
)
"""The sentence of a caption if differences from the best are tested."""
UNRANKED = (
    "A column has no ranks if its best model is not significantly better than chance and "
    "the baselines. "
)


def rank_columns(
    lines: Sequence[Sequence[Entry]],
    decimals: int,
    *,
    higher: bool,
    floors: Sequence[Sequence[float]] = (),
) -> tuple[list[list[Entry]], str]:
    """Return the lines with the ranks of their entries, and sentences about the marks.

    Args:
        lines: the entries of each model, without baselines.
        decimals: the decimals of printed values; values that are printed alike share a rank.
        higher: whether higher values are better.
        floors: for each column, the scores of chance and baselines. A column has no ranks if one
            of these lies within or above the interval of its best entry.
    """
    if not lines:  # the table has only baselines
        return [], ""
    columns = [*zip(*lines, strict=True)]
    has_ranks = [
        _best_is_above(column, floor, higher=higher)
        for column, floor in zip(columns, floors or [()] * len(columns), strict=True)
    ]
    p_values = [corrected_p_values(column) for column in columns]
    ranked = [
        _rank_column(column, p, decimals, higher=higher) if rank else [*column]
        for column, p, rank in zip(columns, p_values, has_ranks, strict=True)
    ]
    result = [list(line) for line in zip(*ranked, strict=True)]
    unranked = "" if all(has_ranks) else UNRANKED
    if not any(entry.rank for line in result for entry in line):
        return result, unranked
    if not any(p_values):
        words = "Differences are not tested, because no two models share two seeds."
        return result, f"{RANKS}{unranked}{words}"
    return result, (
        f"{RANKS}{TIES}{unranked}{DIFFERS}: the number differs significantly from the best one "
        f"(paired t test over shared seeds, p < {1 - LEVEL:.2g} with Holm's correction for all "
        "pairs in the column)."
    )


def marks_without_star(marks: str) -> str:
    """Return those sentences about marks that explain a table in which no number has a star."""
    return "".join(sentence for sentence in (RANKS, TIES, UNRANKED) if sentence in marks)


def _best_is_above(column: Sequence[Entry], floor: Sequence[float], *, higher: bool) -> bool:
    """Return whether the best entry of a column is better than the scores of `floor`."""
    entries = [e for e in column if e.status == "ok" and e.value is not None]
    if not entries:
        return True
    best = (max if higher else min)(entries, key=lambda e: e.value or 0.0)
    return above(best.value or 0.0, best.interval, floor, higher=higher)


def above(value: float, interval: Interval | None, floor: Sequence[float], *, higher: bool) -> bool:
    """Return whether a score, with its whole interval, is better than all scores of `floor`."""
    ends = (interval.low, interval.high) if interval else (value,)
    return all((min(ends) > score) if higher else (max(ends) < score) for score in floor)


def corrected_p_values(column: Sequence[Entry]) -> Mapping[tuple[int, int], float]:
    """Return the corrected p-value of each pair of entries that share seeds, by their indices.

    The correction includes all pairs, because the best entry is chosen by the same numbers.
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


def _rank_column(
    column: Sequence[Entry], p: Mapping[tuple[int, int], float], decimals: int, *, higher: bool
) -> list[Entry]:
    """Return the entries of a column with ranks and marks; `p` are p-values of pairs by index.

    If all entries are printed alike, none of them gets a rank.
    """
    values = {i: e.value for i, e in enumerate(column) if e.status == "ok" and e.value is not None}
    printed = {i: round(value, decimals) for i, value in values.items()}
    first_two = sorted(set(printed.values()), reverse=higher)[:2]
    if len(first_two) < 2:
        return [*column]
    best = (max if higher else min)(values, key=lambda i: values[i])

    def rank_entry(i: int, entry: Entry) -> Entry:
        """Return an entry with its rank, and a mark if it differs significantly from the best."""
        rank = 1 + first_two.index(printed[i]) if printed[i] in first_two else 0
        p_of_best = p.get((min(i, best), max(i, best)))
        differs = rank != 1 and p_of_best is not None and p_of_best < 1 - LEVEL
        rank = 1 if p_of_best is not None and not differs else rank
        number, rest = Table.number(entry)
        return replace(entry, rank=rank, text=number + DIFFERS * differs + rest)

    return [rank_entry(i, entry) if i in printed else entry for i, entry in enumerate(column)]

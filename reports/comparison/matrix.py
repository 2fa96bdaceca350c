"""The small matrix of comparisons: is the model of a row better than that of a column?"""

from collections.abc import Sequence

from lra.reports.comparison.numbers import Numbers
from lra.reports.comparison.pairs import Comparison, Side
from lra.reports.statistics.paired_tests import ALPHA
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.table import Column, Entry, Table

SAME = Entry(text="·")
"""The entry of a model and itself."""


def matrix_table(
    numbers: Numbers, sides: Sequence[Side], comparisons: Sequence[Comparison]
) -> Table:
    """Return the matrix of all pairs of sides, from `compare(numbers, sides, every=True)`."""
    entries: dict[tuple[str, str], Entry] = {}
    for comparison in comparisons:
        a, b = comparison.first, comparison.second
        entries[a, b], entries[b, a] = (_entry(numbers, comparison, sign) for sign in (1, -1))
    titles = [side.title for side in sides]
    lines = [
        ("", row, [SAME if row == column else entries[row, column] for column in titles])
        for row in titles
    ]
    return listed_table(
        lines, [Column(title=title) for title in titles],
        title=f"{numbers.score.title}: is the row better than the column?",
        caption="Numbers are the mean of the row minus that of the column, over the tasks that "
        f"both have, {numbers.score.unit}; bold: the row is significantly better (p < {ALPHA:.2g} "
        "with Holm's correction for all pairs). With several lines for a pair and no mean over "
        "them: in how many of them the row is significantly better, of all. A dash: no number can "
        "be compared.",
    )  # fmt: skip


def _entry(numbers: Numbers, comparison: Comparison, sign: int) -> Entry:
    """Return the entry of the first side (sign 1) or of the second one (sign -1) as the row."""
    good = sign if numbers.score.higher else -sign

    def is_better(mean: float, p: float | None) -> bool:
        return p is not None and p < ALPHA and good * mean > 0

    line = comparison.conclusion
    if line and line.difference:
        mean = line.difference.mean
        rank = int(is_better(mean, line.p_holm))
        return Entry(text=numbers.text(sign * mean, signed=True), value=sign * mean, rank=rank)
    tested = [(x.difference.mean, x.p_holm) for x in comparison.lines if x.difference]
    if not tested:
        return absent(*comparison.lines[0].notes[:1])
    wins = sum(is_better(*result) for result in tested)
    return Entry(text=f"{wins} of {len(tested)}", value=float(wins), rank=int(wins == len(tested)))

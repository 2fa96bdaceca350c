"""Show final scores of trainings and baselines in tables and a figure."""

from collections.abc import Iterator

import pandas as pd

from lra.reports.sections.best_on_validation import best_on_validation
from lra.reports.sections.better_than import better_than
from lra.reports.sections.mad import mad_table
from lra.reports.sections.score_dots import score_dots
from lra.reports.sections.section import LeftOut, Part, TablePart
from lra.reports.stems import stem
from lra.reports.tables.scores import score_tables, splits


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of each split, and the figure of the first split."""
    scored_splits = splits(rows)
    for split in scored_splits:
        for metric, table in score_tables(rows, split):
            name = metric.replace("_", "-")
            heading = f"{metric.replace('_', ' ').capitalize()}, {split} split"
            yield TablePart(name if split == "test" else f"{name}-{stem(split)}", heading, table)
    yield from best_on_validation(rows)
    yield from mad_table(rows)
    yield from better_than(rows)
    yield from score_dots(rows)
    if "test" not in scored_splits:
        yield LeftOut("accuracy", "the rows have no final accuracy on the test split")

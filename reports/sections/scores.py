"""Final scores of trainings and baselines: tables, the choice of a grid, a figure of all."""

from collections.abc import Iterator

import pandas as pd

from lra.reports.sections.best_on_validation import best_on_validation
from lra.reports.sections.score_dots import score_dots
from lra.reports.sections.section import LeftOut, Part, TablePart
from lra.reports.stems import stem
from lra.reports.tables.scores import score_tables, splits


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of every split, and the figure of the first."""
    judged = splits(rows)
    for split in judged:
        for metric, table in score_tables(rows, split):
            name = metric.replace("_", "-")
            heading = f"{metric.replace('_', ' ').capitalize()}, {split} split"
            yield TablePart(name if split == "test" else f"{name}-{stem(split)}", heading, table)
    yield from best_on_validation(rows)
    yield from score_dots(rows)
    if "test" not in judged:
        yield LeftOut("accuracy", "no final accuracy on the test split among the rows")

"""Final scores of trainings and baselines: a table for each split and metric."""

from collections.abc import Iterator

import pandas as pd

from reports.sections.section import LeftOut, Part, TablePart
from reports.stems import stem
from reports.tables.scores import score_tables, splits


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables of every split."""
    judged = splits(rows)
    for split in judged:
        for metric, table in score_tables(rows, split):
            name = metric.replace("_", "-")
            heading = f"{metric.replace('_', ' ').capitalize()}, {split} split"
            yield TablePart(name if split == "test" else f"{name}-{stem(split)}", heading, table)
    if "test" not in judged:
        yield LeftOut("accuracy", "no final accuracy on the test split among the rows")

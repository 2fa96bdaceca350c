"""Show our scores under protocols next to the figures that the sources of the protocols print."""

from collections.abc import Iterator

import pandas as pd

from lra.reports.arena.verdicts import published_table
from lra.reports.sections.section import LeftOut, Part, TablePart

NAME = "published-figures"


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table, or why nothing compares; rows without any protocol have no part."""
    if not (rows["protocol"] != "").any():
        return
    outcome = published_table(rows)
    if isinstance(outcome, str):
        yield LeftOut(NAME, outcome)
    else:
        yield TablePart(NAME, outcome.title, outcome)

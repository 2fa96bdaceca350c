"""What a finished sweep tells its reader on the terminal: the short tables, baselines included."""

from collections.abc import Iterator

import pandas as pd

from reports.rows import cost_points, cost_rows, prepare, settings
from reports.sections.arena import undrawn
from reports.tables.costs import crossover_table
from reports.tables.scores import score_tables
from reports.tables.table import Table


def conclusions(rows: pd.DataFrame) -> Iterator[Table | str]:
    """Yield the tables of scores with baselines, and where each model overtakes the references.

    Sentences follow: why a figure of the Long Range Arena is not drawn.
    """
    frame = prepare(rows)
    for _, table in score_tables(frame):
        yield table
    timed = cost_rows(frame)
    for part in settings(timed) if not timed.empty else ():
        crossing = crossover_table(cost_points(part.rows))
        if crossing is not None:
            yield crossing
    yield from undrawn(frame)

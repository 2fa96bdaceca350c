"""Show hyperparameter searches: gains, costs, sensitivity to options, and comparisons."""

from collections.abc import Iterator

import pandas as pd

from lra.reports.rows import as_text
from lra.reports.sections.section import LeftOut, PagesPart, Part, TablePart
from lra.reports.sections.tuning_curves import CURVE_PANEL, curve_data, curve_figure
from lra.reports.sections.tuning_points import POINT_PANEL, point_data, point_figure
from lra.reports.sections.tuning_tables import (
    comparison_tables,
    rung_table,
    tuned_table,
    window_table,
)
from lra.reports.stems import stem
from lra.reports.tables.searches import RUNNER, Searches


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables and figures for each metric by which a search chose options."""
    if not (rows["runner"] == RUNNER).any():
        return
    searches = Searches(rows)
    if searches.trials.empty:
        yield LeftOut("tuning", "the search has no finished trial yet")
        return
    for metric in searches.trials["metric"].unique():
        yield from _parts_of_metric(searches, str(metric))


def _parts_of_metric(searches: Searches, metric: str) -> Iterator[Part]:
    """Yield the tables and figures of the searches that chose by one metric."""
    name = metric.replace("_", "-")
    yield TablePart(f"tuned-{name}", "Tuned", tuned_table(searches, metric))
    yield PagesPart(
        f"tuning-curve-{name}", "Tuning curves", "best validation score of k trials against k",
        curve_figure, panel=CURVE_PANEL, along="k", data=curve_data(searches, metric),
    )  # fmt: skip
    yield PagesPart(
        f"tuning-options-{name}", "Sensitivity to each option",
        "validation scores of trials against the value of each searched option",
        point_figure, panel=POINT_PANEL, along="setting",
        data=point_data(searches, metric), absent=True,
    )  # fmt: skip
    if (window := window_table(searches, metric)) is not None:
        yield TablePart(f"tuning-window-{name}", "Window of good options", window)
    for place, table in comparison_tables(searches, metric):
        where = stem(str(place[0]), as_text(place[3]))
        yield TablePart(f"tuning-comparison-{name}-{where}", "Comparison at equal budgets", table)
    if (rungs := rung_table(searches, metric)) is not None:
        yield TablePart(f"tuning-rungs-{name}", "Agreement of rungs", rungs)

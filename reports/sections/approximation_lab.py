"""What a report shows of the approximation lab."""

from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd

from lra.reports.rows import COST_SETTING, settings
from lra.reports.sections.approximation import (
    approximation_data,
    approximation_rows,
    approximation_table,
    describe,
    further_words,
)
from lra.reports.sections.approximation_figures import (
    budget_figure,
    feature_data,
    feature_figure,
    feature_pages,
    length_figure,
    shared_budgets,
    time_figure,
)
from lra.reports.sections.section import PagesPart, Part, TablePart, alike
from lra.reports.stems import stem

PANEL = ("length",)
"""Columns whose values share a panel."""


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figures of every setting and mode."""
    measured = approximation_rows(rows)
    if measured.empty:
        return
    parts = settings(measured, COST_SETTING)
    for part in parts:
        data, words = approximation_data(part.rows), further_words(part.rows)
        where = f" ({part.title})" if len(parts) > 1 else ""
        for mode in sorted(set(data["mode"])):
            tag = f"{stem(mode)}{part.suffix}"
            table = approximation_table(data, mode)
            if table is not None:
                heading = f"Approximations, {describe(mode)}{where}"
                yield TablePart(f"approximation-{tag}", heading, table)
            drawn = data[(data["mode"] == mode) & data["value"].notna()]
            for figure in _figures(drawn, mode, part.title, words):
                heading = f"{figure.heading}, {describe(mode)}{where}"
                yield figure._replace(name=f"{figure.name}-{tag}", heading=heading)


def _figures(
    drawn: pd.DataFrame, mode: str, title: str, further: Mapping[str, str]
) -> Iterator[PagesPart]:
    """Yield the figures of one mode of a setting."""
    lengths = sorted(int(n) for n in set(drawn["length"]))
    for length in lengths:
        yield PagesPart(
            f"approximation-budget-{length}", f"Error against budget, {length:,} tokens",
            f"error against budget, {length:,} tokens",
            partial(budget_figure, mode=mode, length=length, subtitle=title), panel=PANEL,
            data=drawn[drawn["length"] == length],
        )  # fmt: skip
    errors = drawn[drawn["measure"] == "output_error"]
    yield PagesPart(
        "approximation-time", "Error against time", "error against time",
        partial(time_figure, mode=mode, subtitle=title), panel=PANEL,
        data=errors[errors["time_ratio"].notna()],
    )  # fmt: skip
    if len(lengths) > 1:
        yield PagesPart(
            "approximation-length", "Error against length", "error against length",
            partial(length_figure, mode=mode, subtitle=title),
            data=errors[errors["budget"].isin(shared_budgets(errors))],
        )  # fmt: skip
    yield PagesPart(
        "approximation-features", "Random features", "random features",
        alike(partial(feature_figure, further=further, mode=mode, subtitle=title)),
        pages=partial(feature_pages, further=further), data=feature_data(errors),
    )  # fmt: skip

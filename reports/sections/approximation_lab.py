"""What a report shows of the approximation lab."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from reports.figures.curves import page_names, pages
from reports.figures.drawing import Look, save
from reports.rows import COST_SETTING, settings
from reports.sections.approximation import (
    approximation_data,
    approximation_rows,
    approximation_table,
    describe,
    further_words,
)
from reports.sections.approximation_figures import (
    budget_figure,
    feature_data,
    feature_figure,
    feature_pages,
    length_figure,
    shared_budgets,
    time_figure,
)
from reports.stems import stem
from reports.tables.table import Table

PANEL = ("length",)
"""Columns whose values share a panel."""


def approximation_parts(
    frame: pd.DataFrame, looks: dict[str, Look], folder: Path
) -> Iterator[tuple[str, str, Table | str]]:
    """Save the figures and yield, for each part, its stem, its heading, and a table or a text.

    Nothing where no row is of this runner. Rows that may not be compared, being of another task or
    machine, get files of their own.
    """
    rows = approximation_rows(frame)
    if rows.empty:
        return
    parts = settings(rows, COST_SETTING)
    for part in parts:
        data, words = approximation_data(part.rows), further_words(part.rows)
        where = f" ({part.title})" if len(parts) > 1 else ""
        for mode in sorted(set(data["mode"])):
            tag = f"{stem(mode)}{part.suffix}"
            table = approximation_table(data, mode)
            if table is not None:
                yield f"approximation-{tag}", f"Approximations, {describe(mode)}{where}", table
            own = data[(data["mode"] == mode) & data["value"].notna()]
            for file, text, draw, shown in _figures(own, mode, looks, part.title, words):
                heading = f"{text[0].upper()}{text[1:]}, {describe(mode)}{where}"
                names = page_names(f"{file}-{tag}", heading, len(shown))
                for plotted, (name, title) in zip(shown, names, strict=True):
                    save(draw(plotted), folder, name, plotted)
                    yield name, title, text


def _figures(
    own: pd.DataFrame, mode: str, looks: dict[str, Look], title: str, further: Mapping[str, str]
) -> Iterator[tuple[str, str, Callable[[pd.DataFrame], Figure], list[pd.DataFrame]]]:
    """Yield stem, text, drawing and numbers of the figures of one mode; the numbers in pages."""
    lengths = sorted(int(n) for n in set(own["length"]))
    for length in lengths:
        draw = partial(budget_figure, looks=looks, mode=mode, length=length, subtitle=title)
        text = f"error against budget, {length:,} tokens"
        here = own[own["length"] == length]
        yield f"approximation-budget-{length}", text, draw, pages(here, PANEL)
    errors = own[own["measure"] == "output_error"]
    timed = errors[errors["time_ratio"].notna()]
    if len(timed):
        draw = partial(time_figure, looks=looks, mode=mode, subtitle=title)
        yield "approximation-time", "error against time", draw, pages(timed, PANEL)
    if len(lengths) > 1:
        draw = partial(length_figure, looks=looks, mode=mode, subtitle=title)
        shared = errors[errors["budget"].isin(shared_budgets(errors))]
        yield "approximation-length", "error against length", draw, pages(shared, ())
    features = feature_data(errors)
    if len(features):
        draw = partial(feature_figure, further=further, mode=mode, subtitle=title)
        shown = feature_pages(features, further)
        yield "approximation-features", "random features", draw, shown

"""What a report shows of the approximation lab."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from reports.approximation import (
    approximation_data,
    approximation_rows,
    approximation_table,
    describe,
)
from reports.approximation_figures import (
    budget_figure,
    feature_data,
    feature_figure,
    length_figure,
    time_figure,
)
from reports.drawing import Look, save
from reports.rows import COST_SETTING, settings
from reports.stems import stem
from reports.tables import Table


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
        data = approximation_data(part.rows)
        where = f" ({part.title})" if len(parts) > 1 else ""
        for mode in sorted(set(data["mode"])):
            tag = f"{stem(mode)}{part.suffix}"
            table = approximation_table(data, mode)
            if table is not None:
                yield f"approximation-{tag}", f"Approximations, {describe(mode)}{where}", table
            own = data[(data["mode"] == mode) & data["value"].notna()]
            for file, text, figure, plotted in _figures(own, mode, looks, part.title):
                name = f"{file}-{tag}"
                save(figure, folder, name, plotted)
                yield name, f"{text[0].upper()}{text[1:]}, {describe(mode)}{where}", text


def _figures(
    own: pd.DataFrame, mode: str, looks: dict[str, Look], title: str
) -> Iterator[tuple[str, str, Figure, pd.DataFrame]]:
    """Yield stem, text, drawing and plotted numbers of the figures of one mode."""
    lengths = sorted(int(n) for n in set(own["length"]))
    for length in lengths:
        here = own[own["length"] == length]
        drawing = budget_figure(here, looks, mode=mode, length=length, subtitle=title)
        text = f"error against budget, {length:,} tokens"
        yield f"approximation-budget-{length}", text, drawing, here
    errors = own[own["measure"] == "output_error"]
    timed = errors[errors["time_ratio"].notna()]
    if len(timed):
        drawing = time_figure(timed, looks, mode=mode, subtitle=title)
        yield "approximation-time", "error against time", drawing, timed
    if len(lengths) > 1:
        drawing = length_figure(errors, looks, mode=mode, subtitle=title)
        yield "approximation-length", "error against length", drawing, errors
    features = feature_data(errors)
    if len(features):
        drawing = feature_figure(features, mode=mode, subtitle=title)
        yield "approximation-features", "random features", drawing, features

"""Show time and memory of passes: figures against length, and tables of cost."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pandas as pd

from lra.reports.figures.panels import line_figures
from lra.reports.figures.scaling import QUANTITIES, scaling_data
from lra.reports.rows import ComparableRows, CostPoint, by_setting, cost_points, cost_rows
from lra.reports.sections.section import LeftOut, LinesPart, Part, TablePart
from lra.reports.stems import stem
from lra.reports.tables.costs import (
    busy,
    crossover_table,
    describe_pass,
    efficiency_table,
    growth_table,
    modes,
)
from lra.reports.tables.table import Table

OVER_MODES: tuple[tuple[str, str, Callable[[Sequence[CostPoint]], Table | None], str], ...] = (
    ("crossover", "Crossover", crossover_table,
     "no run timed a model interleaved with a reference"),
    ("growth", "Growth", growth_table, "no model was measured at two or more lengths"),
)  # fmt: skip
"""Tables over all modes: name, heading, function, and the reason if the function returns None."""


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables and figures of every setting."""
    timed = cost_rows(rows)
    if timed.empty:
        reason = "the rows have no times of passes against length"
        yield LeftOut("time, memory, efficiency, crossover", reason)
        return
    parts = by_setting(timed)
    for part in parts:
        points = cost_points(part.rows)
        where = f" ({part.title})" if len(parts) > 1 else ""
        for mode in modes(points):
            yield from _parts_of_mode(part, points, mode, where)
        for name, heading, build, why in OVER_MODES:
            table = build(points)
            if table is None:
                yield LeftOut(f"{name}{part.suffix}", why)
            else:
                yield TablePart(f"{name}{part.suffix}", f"{heading}{where}", table)


def _parts_of_mode(
    part: ComparableRows, points: Sequence[CostPoint], mode: str, where: str
) -> Iterator[Part]:
    """Yield the table and the figures of one mode; `where` ends their headings."""
    ending = f"{stem(mode)}{part.suffix}"
    table = efficiency_table(points, mode)
    remark = busy([point for point in points if point.mode == mode])
    subtitle = ". ".join(filter(None, (part.title, remark)))
    if table is not None:
        heading = f"Efficiency, {describe_pass(mode)}{where}"
        yield TablePart(f"efficiency-{ending}", heading, table)
    for quantity, words in QUANTITIES.items():
        text = f"{words} against length, {describe_pass(mode)}"
        yield LinesPart(
            f"{quantity}-{ending}", f"{text[0].upper()}{text[1:]}{where}", text,
            scaling_data(points, mode, quantity),
            partial(line_figures, subtitle=subtitle if quantity == "time" else part.title),
        )  # fmt: skip

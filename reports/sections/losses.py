"""Losses as lines: along a training, and on each split by classes of tokens."""

from collections.abc import Iterator
from functools import partial

import pandas as pd

from lra.reports.figures.curves import (
    CLASSES,
    EVALUATION,
    STEP,
    Axis,
    class_data,
    curve_figure,
    loss_data,
)
from lra.reports.sections.section import LeftOut, PagesPart, Part
from lra.reports.stems import stem
from lra.reports.tables.scores import splits


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the curve of trainings, and of every split the losses by classes."""
    data = loss_data(rows)
    if data.empty:
        yield LeftOut("training loss", "no loss curves among the rows")
        return
    yield _figure("training-loss", "training loss against optimiser step", STEP, data)
    for split in splits(rows):
        for kind, axis in CLASSES.items():
            name = f"loss-by-{'place' if kind == 'position' else kind.replace('_', '-')}"
            name = name if split == "test" else f"{name}-{stem(split)}"
            text = f"{axis.title.lower()}, {split} split"
            yield _figure(name, text, axis, class_data(rows, split, kind))


def _figure(name: str, text: str, axis: Axis, data: pd.DataFrame) -> PagesPart:
    heading = f"{text[0].upper()}{text[1:]}"
    draw = partial(curve_figure, axis=axis)
    return PagesPart(
        name, heading, text, draw, panel=EVALUATION, along=axis.column, number="loss", data=data
    )

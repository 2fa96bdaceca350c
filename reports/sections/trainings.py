"""What trainings show beside scores and curves: learned spans, widths of keys, multiply-adds."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from reports.figures.drawing import Look
from reports.sections.key_width import key_width_parts
from reports.sections.learned_spans import learned_span_parts
from reports.sections.score_cost import score_cost_parts
from reports.tables.table import Table


def training_parts(
    frame: pd.DataFrame, looks: dict[str, Look], folder: Path
) -> Iterator[tuple[str, str, Table | str]]:
    """Save the figures that the rows allow; yield (stem, heading, table or text of a figure)."""
    yield from learned_span_parts(frame, looks, folder)
    yield from score_cost_parts(frame, looks, folder)
    yield from key_width_parts(frame, looks, folder)

"""Show further results of trainings: scores by group, errors, steps to targets, spans, costs."""

from collections.abc import Iterator

import pandas as pd

from lra.reports.sections.capacity import capacity_table
from lra.reports.sections.error_rates import error_rates
from lra.reports.sections.key_width import key_widths
from lra.reports.sections.learned_spans import learned_spans
from lra.reports.sections.score_cost import (
    score_costs,
    score_long_times,
    score_times,
    untimed_trainings,
)
from lra.reports.sections.score_groups import score_groups
from lra.reports.sections.section import Part
from lra.reports.sections.target_steps import target_steps
from lra.reports.sections.width_curves import width_curves


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the tables and figures of trainings, except their scores and losses."""
    yield from score_groups(rows)
    yield from error_rates(rows)
    yield from target_steps(rows)
    yield from learned_spans(rows)
    yield from score_times(rows)
    yield from untimed_trainings(rows)
    yield from score_long_times(rows)
    yield from score_costs(rows)
    yield from key_widths(rows)
    yield from width_curves(rows)
    yield from capacity_table(rows)

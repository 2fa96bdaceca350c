"""Show how often a language model ranks the answer of a needle first, by length and depth."""

from collections.abc import Iterator

import pandas as pd

from lra.reports.sections.depth_maps import depth_maps
from lra.reports.sections.generic import generic_tables
from lra.reports.sections.score_groups import group_data
from lra.reports.sections.section import Part

METRICS = ("answer_rank", "candidate_accuracy", "answer_accuracy")


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table of `runner=needles`, and the heat map."""
    probed = rows[rows["runner"] == "needles"]
    means = probed[probed["metric"] != "accuracy_by_group"]
    yield from generic_tables(means, {"needles": METRICS})
    yield from depth_maps(group_data(rows, "needles"))

"""The rules of the tables of the Long Range Arena: tasks, order, averages, lengths, sizes.

Every rule has a name, and captions print it, so that a reader knows how a number was computed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from lra.reports.literature.findings import FAILURES

TASKS: Mapping[str, str] = {
    "listops": "ListOps",
    "text": "Text",
    "retrieval": "Retrieval",
    "image": "Image",
    "pathfinder": "Pathfinder",
    "pathx": "Path-X",
}
"""Titles of the columns, in the order of the paper."""
HARDEST = "pathx"
"""The task on which the paper prints FAIL for a model at chance."""
MODELS = (
    "softmax", "sdpa", "local", "sparse_transformer", "longformer", "linformer", "reformer",
    "sinkhorn", "synthesizer", "big_bird", "linear", "performer",
)  # fmt: skip
"""Families in the order of the paper; all others follow by name."""
EXACT = ("softmax", "sdpa")
"""Two implementations of exact attention, which is the paper's Transformer."""
LENGTHS: Mapping[int, str] = {
    length: title
    for pair, title in {
        (1000, 1024): "1K", (2000, 2048): "2K", (3000, 3072): "3K", (4000, 4096): "4K",
    }.items()
    for length in pair
}  # fmt: skip
"""Lengths in bytes at which costs are compared, with their titles; 1024 counts as 1K, too."""
COSTED = "text"
"""The task of the training steps in the table of costs."""
BATCH = 32
"""Sequences in a training step of the table of costs."""
BEST_OF_LENGTHS: Mapping[str, tuple[int, ...]] = {"text": (1000, 2000, 3000, 4000)}
"""Rule best_of_lengths: the score on this task is the best of the scores at these lengths."""
PARAMETERS = 1.1
"""Rule parameters_within_10_percent: a model has at most this many times the parameters of exact
attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageRule:
    """A rule by which scores of several tasks become one."""

    name: str
    title: str
    tasks: tuple[str, ...]
    failure: float | None = None
    """The score that counts for FAIL on Path-X; None if the average excludes Path-X."""


AVERAGES = tuple(
    AverageRule(name=name, title="without Path-X", tasks=tuple(TASKS)[:5])
    if percent is None
    else AverageRule(
        name=name, title=f"FAIL as {percent:g}", tasks=tuple(TASKS), failure=percent / 100
    )
    for name, percent in FAILURES.items()
)


def place(family: str) -> tuple[int, str]:
    """Return the sort key of a family: first those of the paper in its order, then the others."""
    return (MODELS.index(family) if family in MODELS else len(MODELS), family)

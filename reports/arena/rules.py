"""What the tables of the Long Range Arena agree on: tasks, order, averages, lengths, sizes.

Every rule has a name, which captions print: a reader sees by which rule a number came about.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
"""The task at which a model at chance has failed; the paper prints FAIL."""
MODELS = (
    "softmax", "sdpa", "local", "sparse_transformer", "longformer", "linformer", "reformer",
    "sinkhorn", "synthesizer", "big_bird", "linear", "performer",
)  # fmt: skip
"""The order of the paper; any other model follows by name."""
EXACT = ("softmax", "sdpa")
"""Two programs of exact attention, the paper's Transformer."""
LENGTHS: Mapping[int, str] = {
    length: title
    for pair, title in {
        (1000, 1024): "1K", (2000, 2048): "2K", (3000, 3072): "3K", (4000, 4096): "4K",
    }.items()
    for length in pair
}  # fmt: skip
"""Bytes at which costs are compared; powers of two stand for the round numbers."""
COSTED = "text"
"""The task whose training steps are compared by cost."""
BATCH = 32
"""Sequences of a training step in the table of costs."""
BEST_OF_LENGTHS: Mapping[str, tuple[int, ...]] = {"text": (1000, 2000, 3000, 4000)}
"""Rule best_of_lengths: the task's score is the best of those at several lengths."""
PARAMETERS = 1.1
"""Rule parameters_within_10_percent: the most parameters, over those of exact attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageRule:
    """A rule by which scores of several tasks become one."""

    name: str
    title: str
    tasks: tuple[str, ...]
    failure: float | None = None
    """What a failed Path-X counts as."""


AVERAGES = (
    AverageRule(name="five_tasks", title="without Path-X", tasks=tuple(TASKS)[:5]),
    AverageRule(name="six_tasks_failure_50", title="FAIL as 50", tasks=tuple(TASKS), failure=0.5),
    AverageRule(name="six_tasks_failure_0", title="FAIL as 0", tasks=tuple(TASKS), failure=0.0),
)


def place(family: str) -> tuple[int, str]:
    """Return what sorts families in the order of the paper."""
    return (MODELS.index(family) if family in MODELS else len(MODELS), family)

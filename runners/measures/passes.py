"""Number and length of the batches of a split, from which the passes of a run are counted."""

import logging
from typing import Any, NamedTuple

import numpy as np

from lra.runners.runner import Uncounted
from lra.tasks.classification.gray import GrayTask
from lra.tasks.data.batching import evaluation_plan, training_plan
from lra.tasks.task import AcceptsSeveral, Task

log = logging.getLogger(__name__)

MOST_EXAMPLES = 20_000
"""The lengths of about so many examples are read; more would change their mean by less than 1 %."""


def size(task: Task, split: str) -> int:
    """Return the number of examples of a split.

    Raises:
        Uncounted: the number is known only from prepared data, and they are missing.
    """
    count = task.spec.sizes.get(split)
    if count is None:
        try:
            count = int(task.examples(split)) if hasattr(task, "examples") else None
        except Exception as error:  # noqa: BLE001 - missing data may raise any error
            log.debug("examples of %s: %s", split, error)
    if count is None:
        raise Uncounted(
            f"the number of examples in the split {split} of {task.spec.name} is unknown until you "
            f"prepare its data: lra data prepare {task.spec.name}"
        )
    return count


class JudgingPasses(NamedTuple):
    """How many tokens of a split's rows are judged, and by how many passes."""

    asked: float | None
    """Tokens of a row that are judged, on average; None: all, or unknown."""
    further: int
    """Passes of an evaluation that choose tokens, before those that judge them."""


def judged_tokens(task: Task, split: str) -> JudgingPasses:
    """Return the judged tokens of a split, and the passes in which a model answers again."""
    source: Any = task
    questions: tuple[float, int] | None = None
    if hasattr(task, "count_questions"):
        try:
            questions = source.count_questions(split)
        except Exception as error:  # noqa: BLE001 - missing data may raise any error
            log.debug("questions of %s: %s", split, error)
    asked, most = questions or (None, 1)
    again = isinstance(task, AcceptsSeveral)
    return JudgingPasses(asked, (most if source.writes else 1) if again else 0)


def padded_length(task: Task, split: str, batch_size: int) -> tuple[int, bool]:
    """Return the mean length of a split's batches, padding included, and whether it is exact.

    If rows are padded and the data are missing, it is the longest length of the task, with False.
    """
    longest = task.spec.max_length
    source: Any = task
    if isinstance(task, GrayTask):  # all pictures have the same length, padded pixels included
        return longest, True
    if not task.spec.padded:
        return (int(source.window(split)) if hasattr(task, "window") else longest), True
    try:
        # Whole batches and one more example, so that there is one for any batch size.
        lengths = np.asarray(source.lengths(split))[: MOST_EXAMPLES // batch_size * batch_size + 1]
        batches = {"batch_size": batch_size, "bucket_batches": source.bucket_batches}
        if split != "train":
            row_groups = evaluation_plan(lengths, **batches)
        else:
            row_groups = training_plan(lengths, seed=0, **batches)
        return round(float(np.mean([lengths[rows].max() for rows in row_groups]))), True
    except Exception as error:  # noqa: BLE001 - missing data may raise any error
        log.debug("lengths of %s: %s", split, error)
        return longest, False

"""Number and length of the batches of a split, from which the passes of a run are counted."""

import logging
from typing import Any

import numpy as np

from lra.runners.runner import Uncounted
from lra.tasks.classification.gray import GrayTask
from lra.tasks.data.batching import evaluation_plan, training_plan
from lra.tasks.task import Task

log = logging.getLogger(__name__)

MOST_EXAMPLES = 20_000
"""Examples whose lengths are read: more would change the mean by less than 1 %."""


def size(task: Task, split: str) -> int:
    """Return the number of examples of a split.

    Raises:
        Uncounted: only the prepared data tell.
    """
    count = task.spec.sizes.get(split)
    if count is None:
        try:
            count = int(task.examples(split)) if hasattr(task, "examples") else None
        except Exception as error:  # noqa: BLE001 - whatever data that are not there raise
            log.debug("examples of %s: %s", split, error)
    if count is None:
        raise Uncounted(
            f"the number of examples in the split {split} of {task.spec.name} is known once its "
            f"data are prepared: lra data prepare {task.spec.name}"
        )
    return count


def padded_length(task: Task, split: str, batch_size: int) -> tuple[int, bool]:
    """Return the mean length of a split's batches, padding included, and whether it was measured.

    Where rows are padded and the data are not prepared, it is the task's longest, and not seen.
    """
    whole = task.spec.max_length
    source: Any = task
    if isinstance(task, GrayTask):  # where it pads, a part of each picture is left out
        return whole, True
    if not task.spec.padded:
        return (int(source.window(split)) if hasattr(task, "window") else whole), True
    try:
        lengths = np.asarray(source.lengths(split))[: MOST_EXAMPLES // batch_size * batch_size + 1]
        batches = {"batch_size": batch_size, "bucket_batches": source.bucket_batches}
        if split != "train":
            plan = evaluation_plan(lengths, **batches)
        else:
            plan = training_plan(lengths, seed=0, **batches)
        return round(float(np.mean([lengths[rows].max() for rows in plan]))), True
    except Exception as error:  # noqa: BLE001 - whatever data that are not there raise
        log.debug("lengths of %s: %s", split, error)
        return whole, False

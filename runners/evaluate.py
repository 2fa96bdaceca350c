"""Judge a model on one split, item by item."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from models.backbone import Backbone
from runners.metrics import METRICS
from runners.records import Outcomes
from runners.stream import to_device
from tasks.task import Tally, Task


def evaluate(
    model: Backbone,
    task: Task,
    split: str,
    *,
    batch_size: int,
    device: torch.device,
    each: Callable[[], None] = lambda: None,
) -> tuple[dict[str, float], Outcomes]:
    """Return accuracy and mean loss in nats, and the outcome of every item in split order.

    Leaves the model in eval mode.

    Args:
        model: the model.
        task: prepared.
        split: train, validation or test.
        batch_size: rows at once; cannot change what is returned but by rounding.
        device: where the model is.
        each: called before every batch; may raise.

    Raises:
        ValueError: the split is empty.
    """
    model.eval()
    tallies: list[Tally] = []
    with torch.inference_mode():
        for batch in task.batches(split, batch_size=batch_size, seed=0):
            each()
            there = to_device(batch, device)
            outcome = model(there.tokens, there.target, there.keep)
            tallies.append(task.tally(outcome.nll.float().cpu(), outcome.hit.cpu(), batch))
    count = sum(tally.count for tally in tallies)
    if not count:
        raise ValueError(f"the {split} split of {task.spec.name} has nothing to judge")
    index = np.concatenate([tally.index.numpy() for tally in tallies]).astype(np.int64)
    order = np.argsort(index, kind="stable")
    outcomes = Outcomes(
        split=split,
        index=index[order],
        hit=np.concatenate([tally.hit.numpy() for tally in tallies])[order],
        nll=np.concatenate([tally.nll.numpy() for tally in tallies])[order].astype(np.float32),
    )
    measured = {
        "accuracy": sum(tally.hits for tally in tallies) / count,
        "loss": sum(tally.nll_sum for tally in tallies) / count,
    }
    return measured, outcomes


def goodness(measured: Mapping[str, float], metric: str) -> float:
    """Return a number that is higher for better weights: by the task's metric, or by the loss.

    The loss decides where the task's own metric is computed elsewhere from stored outcomes.
    """
    name = metric if metric in measured else "loss"
    return measured[name] if METRICS[name].higher_is_better else -measured[name]

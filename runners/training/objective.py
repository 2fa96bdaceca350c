"""The loss of a training step: one formula for every model and task."""

from torch import Tensor

from lra.models.backbone.model import Outcome


def whole_batch(outcome: Outcome) -> Tensor:
    """Return the loss of a batch that is computed at once, in which each item has weight 1."""
    return objective(outcome, None, outcome.nll.numel(), 1.0)


def objective(
    outcome: Outcome, weight: Tensor | None, total: Tensor | float, share: float
) -> Tensor:
    """Return sum(weight * nll) / total + share * penalties for one micro-batch.

    The sum over all micro-batches is the loss of the whole batch.

    Args:
        outcome: losses of the items and penalties, as the model returns them for the micro-batch.
        weight: weight of each item; None: every item has weight 1.
        total: sum of the weights of all items in the whole batch.
        share: rows of the micro-batch, divided by the rows of the whole batch.
    """
    nll = outcome.nll if weight is None else outcome.nll * weight
    loss = nll.sum() / total
    for penalty in outcome.penalties.values():
        loss = loss + share * penalty
    return loss

"""The loss of a training step: one formula for every model and task."""

from torch import Tensor

from lra.models.backbone.model import Outcome


def whole_batch(outcome: Outcome) -> Tensor:
    """Return the loss of a batch that is judged as a whole, each item once."""
    return objective(outcome, None, outcome.nll.numel(), 1.0)


def objective(
    outcome: Outcome, weight: Tensor | None, total: Tensor | float, share: float
) -> Tensor:
    """Return the loss of one micro-batch, a part of the batch's: parts add up to the whole.

    Args:
        outcome: the model's judgement of the micro-batch.
        weight: like the outcome's items, or None for ones.
        total: weight of all items of the effective batch.
        share: rows of the micro-batch / rows of the effective batch.
    """
    nll = outcome.nll if weight is None else outcome.nll * weight
    loss = nll.sum() / total
    for penalty in outcome.penalties.values():
        loss = loss + share * penalty
    return loss

"""Rows that say where the first weights of a training come from."""

from collections.abc import Callable, Iterator
from pathlib import Path

from lra.models.backbone.model import Backbone
from lra.models.transfer.checkpoints import load_checkpoint
from lra.models.transfer.files import is_checkpoint
from lra.models.transfer.weights import TransferReport, transfer
from lra.runners.records import Measurement


def initial_parameters(report: TransferReport) -> Iterator[Measurement]:
    """Yield how many parameters are taken over and how many drawn, and the parts they are in."""
    for origin, count in report.parameters.items():
        names = (name for name, source in report.origins.items() if source is origin)
        parts = dict.fromkeys(name.partition(".")[0] for name in names)
        labels = {"origin": origin.value, **({"parts": ", ".join(parts)} if parts else {})}
        yield Measurement(metric="initial_parameters", value=float(count), labels=labels)


def start_weights(
    model: Backbone, weights: str, stored: Callable[[], Backbone]
) -> Iterator[Measurement]:
    """Let a model start from what `runner.weights` names; yield what became of its parameters.

    Args:
        model: As drawn.
        weights: A file of a checkpoint, or a completed training.
        stored: Makes the model of that training.

    Raises:
        Unsupported: The weights have no place in the model.
        ValueError: The file cannot be read.
    """
    if is_checkpoint(weights):
        return initial_parameters(load_checkpoint(Path(weights), model))
    return initial_parameters(transfer(stored(), model))

"""Finds out before a cell runs whether its model can be built, without weights."""

import logging
from typing import Any

import torch

from lra.composition.compose import are_bundled, build_model, facts
from lra.composition.run import Run
from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.runners.records import text_of

log = logging.getLogger(__name__)


class TrialBuilds:
    """Builds each kind of model once; runs that differ in seed or learning rate share the result.

    Only mixers that come with lra are built: another one may do anything in its constructor.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}  # why a model is refused, by its key; "": it is built

    def check(self, run: Run, length: int) -> None:
        """Refuse a cell whose model cannot be built; `length`: tokens of its longest sequences.

        Raises:
            Unsupported: The model or the runner refuses; the message says why and what to do.
        """
        if reason := refusal(run):
            raise Unsupported(reason)
        if not run.runner.models or not are_bundled(run.mixers, run.stack):
            return
        task_facts = facts(run, length if run.runner.by_length else None)
        key = repr((run.model, run.mixer_options, run.backbone, task_facts))
        if key not in self._reasons:
            self._reasons[key] = _find_refusal(run, length)
        if self._reasons[key]:
            raise Unsupported(self._reasons[key])


def refusal(run: Run) -> str:
    """Return why the runner of a run cannot measure its model on its task; "" if it can."""
    parts: list[Any] = [*run.mixers]
    return run.runner.unfit(run.task, [part.func for part in parts])


def without_weights(run: Run, length: int) -> Backbone | None:
    """Return the model of a cell on the device `meta`; None if it cannot be built without weights.

    Args:
        run: The run of the cell.
        length: Tokens of its sequences.

    Raises:
        Unsupported: The model refuses these options.
    """
    try:
        with torch.device("meta"):
            return build_model(run, max_length=length if run.runner.by_length else None)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - a constructor may read weights, which are not there
        log.debug(
            "this model cannot be built without weights: %s: %s",
            type(error).__name__,
            text_of(error),
        )
        return None


def _find_refusal(run: Run, length: int) -> str:
    """Return why the model of a cell cannot be built; "" if it can."""
    try:
        without_weights(run, length)
    except Unsupported as error:
        return str(error)
    return ""

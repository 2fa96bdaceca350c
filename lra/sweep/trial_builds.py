"""Whether a cell's model can be built, and processes can share its sequences: asked beforehand.

The model is built without weights, which takes milliseconds. Of processes that share sequences, one
makes its pass with tensors that have shapes alone, as the first of `hardware.context` makes it;
nothing is sent. What a mixer, the stack or the model cannot share, it refuses there with the words
that a run would fail by.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lra.composition.compose import are_bundled, build_model, facts
from lra.composition.run import Run
from lra.models.context import Context
from lra.models.mixer import Unsupported
from lra.models.transport import Addressed, Request
from lra.runners.records import text_of
from lra.runners.runner import Passes
from lra.sweep.costs import call_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from lra.models.backbone.model import Backbone

MOST_OPERATIONS = 5_000
"""Of one pass. What refuses does so in the first layers; a recurrence has many steps."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Unsent:
    """The ranks of a group, of which only this one is there: what it gets has shapes alone."""

    rank: int
    ranks: int

    def start(self, sends: Addressed, receives: Addressed) -> "Sequence[Request]":
        """Send nothing, and leave what is received as it is."""
        del sends, receives
        return ()

    def gather(self, x: "Tensor") -> "Tensor":
        """Return a tensor of the shape of all ranks' together."""
        return x.new_empty((self.ranks, *x.shape))

    def reduce(self, x: "Tensor", *, largest: bool = False) -> None:
        """Leave the tensor as it is."""
        del x, largest


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets so many operations through, and no more."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = most

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call one, or raise TimeoutError."""
        self.left -= 1
        if self.left < 0:
            raise TimeoutError
        return func(*args, **(kwargs or {}))


class TrialBuilds:
    """Asks each kind of model once: seeds and rates share the answer.

    Args:
        every: whether to ask every model, or those alone whose processes share sequences. A mixer
            from elsewhere may do anything while it is built, so it is left to its own process.
    """

    def __init__(self, *, every: bool = True) -> None:
        self.every = every
        self._reasons: dict[str, str] = {}

    def check(self, run: Run, length: int) -> None:
        """Refuse a cell whose model cannot be built, or whose processes cannot share its sequences.

        A padded batch of a training may be shorter than the longest one, which is asked about.

        Args:
            run: Of the cell.
            length: Tokens of its longest sequences.

        Raises:
            Unsupported: With the reason and the way out.
        """
        alone = run.hardware.context == 1
        asked = self.every and are_bundled(run.mixers, run.stack)
        if not run.runner.models or (alone and not asked):
            return
        task_facts = facts(run, length if run.runner.by_length else None)
        key = repr((run.model, run.mixer_options, run.backbone, task_facts, run.hardware.context,
                    length, run.task.spec.memory))  # fmt: skip
        if key not in self._reasons:
            self._reasons[key] = _reason(run, length, task_facts)
        if self._reasons[key]:
            raise Unsupported(self._reasons[key])


def without_weights(run: Run, length: int) -> "Backbone | None":
    """Return the model of a cell on the device `meta`; None where it wants to read weights.

    Args:
        run: Of the cell.
        length: Tokens of its sequences.

    Raises:
        Unsupported: It cannot be built like this.
    """
    try:
        with torch.device("meta"):
            return build_model(run, max_length=length if run.runner.by_length else None)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - a constructor may read weights, which are not there
        log.debug("not tried without weights: %s: %s", type(error).__name__, text_of(error))
        return None


def _reason(run: Run, length: int, task_facts: Any) -> str:
    """Return why a cell is refused; "" where it is not."""
    try:
        model = without_weights(run, length)
        if model is not None and run.hardware.context > 1:
            _share(run, model, length, task_facts)
    except Unsupported as error:
        return str(error)
    return ""


def _share(run: Run, model: "Backbone", length: int, task_facts: Any) -> None:
    """Make one process's pass. Raises Unsupported."""
    ranks = run.hardware.context
    if length < ranks:
        raise Unsupported(
            f"sequences of {length:,} tokens for {ranks} processes that share each: wanted at "
            "least a token for each; lower hardware.context"
        )
    context = Context.of(Unsent(0, ranks), length)
    passes = Passes(1, 1, context.length, step=False, measured=run.runner.by_length)
    model.train()
    call = call_of(
        model, task_facts, run.hardware.precision, passes,
        rows=1, memory=run.task.spec.memory, context=context,
    )  # fmt: skip
    try:
        with torch.no_grad(), _Operations(MOST_OPERATIONS):
            call()
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001 - what needs contents fails in its own way: no refusal
        log.debug("%s cannot be asked about shared sequences: %s", run.model, error)

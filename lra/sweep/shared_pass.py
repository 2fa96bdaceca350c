"""Whether processes can share the sequences of a cell: asked of a model without contents.

One process's pass is made with tensors that have shapes alone, as the first of `hardware.context`
makes it; nothing is sent. What a mixer, the stack or the model cannot share, it refuses there with
the words that a run would fail by.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lra.compose import Run, build_model, facts
from lra.sweep.costs import call_of
from models.context import Context
from models.mixer import Unsupported
from models.transport import Addressed, Request
from runners.passes import Passes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

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


class SharedPasses:
    """Asks each kind of model once: seeds share the answer."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def check(self, run: Run, length: int) -> None:
        """Refuse a cell whose processes cannot share its sequences; without `context`, nothing.

        A padded batch of a training may be shorter than the longest one, which is asked about.

        Args:
            run: Of the cell.
            length: Tokens of its longest sequences.

        Raises:
            Unsupported: With the reason and the way out.
        """
        if run.hardware.context == 1:
            return
        measured = run.runner.by_length
        known = facts(run, length if measured else None)
        key = repr((run.model, run.mixer_options, run.backbone, known, run.hardware.context, length,
                    run.task.spec.memory))  # fmt: skip
        if key not in self._found:
            self._found[key] = _reason(run, length, known, measured=measured)
        if self._found[key]:
            raise Unsupported(self._found[key])


def _reason(run: Run, length: int, known: Any, *, measured: bool) -> str:
    ranks = run.hardware.context
    if length < ranks:
        return (
            f"sequences of {length:,} tokens for {ranks} processes that share each: wanted at "
            "least a token for each; lower hardware.context"
        )
    context = Context.of(Unsent(0, ranks), length)
    passes = Passes(1, 1, context.length, step=False, measured=measured)
    try:
        with torch.device("meta"):
            model = build_model(run, max_length=length if measured else None)
        model.train()
        call = call_of(
            model, known, run.hardware.precision, passes,
            rows=1, memory=run.task.spec.memory, context=context,
        )  # fmt: skip
        with torch.no_grad(), _Operations(MOST_OPERATIONS):
            call()
    except Unsupported as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - what needs contents fails in its own way: no refusal
        log.debug("%s cannot be asked about shared sequences: %s", run.model, error)
    return ""

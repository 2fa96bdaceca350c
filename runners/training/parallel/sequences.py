"""Processes that share each sequence: every one judges its part of the tokens of the same rows.

Token ids of a batch are on each process, as the batch was read; what is computed from them is on
all together once.
"""

from typing import Any, NamedTuple, cast

import torch.distributed as dist
from torch import Tensor

from lra.models.backbone.model import Backbone, Outcome
from lra.models.context import Context
from lra.models.mixer import Layout, State
from lra.models.transport import Processes, Transport
from lra.tasks.task import Batch


def sharing(context: int) -> "SharedSequences | None":
    """Return what this process does with sequences that `context` neighbours share; all must call.

    None where each process has sequences of its own.
    """
    if context == 1:
        return None
    starts = range(0, dist.get_world_size(), context)
    groups = [dist.new_group([*range(first, first + context)]) for first in starts]
    return SharedSequences(Processes(groups[dist.get_rank() // context]))


class BatchPart(NamedTuple):
    """This process's part of a batch."""

    batch: Batch
    layout: Layout
    """With its masks, and the processes."""


class SharedSequences:
    """What this process does with the sequences of a batch.

    Args:
        transport: To those that share them.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    def part(self, batch: Batch) -> BatchPart:
        """Return this process's part of whole rows.

        Raises:
            ValueError: They have fewer tokens than there are processes.
        """
        context = Context.of(self.transport, batch.tokens.shape[2])
        by_token = batch.target.dim() > 1
        axes = {"tokens": 2, "keep": 2, "document": 1, "order": 1, "document_position": 1}
        if by_token:
            axes.update({"target": 1, "weight": 1})
        parts: dict[str, Any] = {
            name: context.part(getattr(batch, name), axis)
            for name, axis in axes.items()
            if getattr(batch, name) is not None
        }
        cut = batch._replace(**parts)
        layout = Layout(document=cut.document, prefix=cut.prefix, order=cut.order, context=context)
        return BatchPart(cut, layout)

    def judged(self, model: Backbone, batch: Batch, state: State) -> Outcome:
        """Return the outcome of whole rows, the same on every process and without a gradient."""
        part = self.part(batch)
        ours = part.batch
        outcome = model(ours.tokens, ours.target, ours.keep, state, layout=part.layout)
        return self.joined(cast(Outcome, outcome), part)

    def counted_once(self, outcome: Outcome) -> Outcome:
        """Return what this process adds to a sum over all: what each of them has, in equal shares.

        Those are answers for a whole sequence, and penalties.
        """
        share = 1 / self.transport.ranks
        nll = outcome.nll * share if outcome.nll.dim() == 1 else outcome.nll
        penalties = {name: value * share for name, value in outcome.penalties.items()}
        return outcome._replace(nll=nll, penalties=penalties)

    def joined(self, outcome: Outcome, part: BatchPart) -> Outcome:
        """Return the outcome of whole rows, the same on every process and without a gradient."""
        context = part.layout.context
        if context is None or outcome.nll.dim() == 1:
            return outcome
        hit: Tensor | None = outcome.hit
        nll = context.joined(outcome.nll.detach())
        return outcome._replace(nll=nll, hit=None if hit is None else context.joined(hit))

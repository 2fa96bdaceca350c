"""Numbers that travel with the last gradients: a message of their own costs as much as a large one.

DistributedDataParallel sends gradients in buckets, by the order in which they come. What ranks tell
each other in a step is the gradient of one more weight, which comes last, when every rank can tell
which of its weights have a gradient. Those that no rank has one for keep none, as in one process,
so that optimisers leave them alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

NUMBERS = 3
"""Sent before one number for each weight: a loss, and whether to stop and to save."""


class EnclosedBuffer:
    """What is sent with the gradients of one model's weights.

    Args:
        weights: All that are trained.
        ranks: Processes that send.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: int) -> None:
        self.weights, self.ranks = weights, ranks
        real = [weight.dtype for weight in weights if weight.is_floating_point()]
        size, dtype = NUMBERS + len(weights), (real or [torch.float32])[0]
        self.carrier = nn.Parameter(torch.zeros(size, dtype=dtype, device=weights[0].device))
        """Its gradient is the message; it is no weight of the model."""
        self.closing = True
        """Whether the next pass backward is the last of an update, which sends."""
        self.sums = torch.empty(0)
        """Of what was enclosed, after `settle`."""
        self._numbers: Tensor | None = None
        self._without: list[int] = []

    def enclose(self, numbers: Tensor) -> None:
        """Enclose `NUMBERS` numbers with the gradients of the next pass backward that sends."""
        self._numbers = numbers

    def message(self) -> Tensor | None:
        """Return what this rank says, once all its gradients are there; None where none is sent."""
        if not self.closing:
            return None
        message = torch.ones_like(self.carrier)
        self._without = [n for n, weight in enumerate(self.weights) if weight.grad is None]
        if self._without:
            message[[NUMBERS + n for n in self._without]] = 0
        if self._numbers is not None:
            message[:NUMBERS] = self._numbers
        self._numbers = None
        return message

    def settle(self) -> None:
        """Take what came with the gradients, and drop those that no rank had."""
        mean, self.carrier.grad = self.carrier.grad, None
        assert mean is not None, "a pass backward comes first"
        self.sums = mean[:NUMBERS] * self.ranks
        if self._without:  # else there is nothing to ask a device for
            had = mean[NUMBERS:][self._without].tolist()
            for number, share in zip(self._without, had, strict=True):
                if not share:
                    self.weights[number].grad = None


class HeardOf(nn.Module):
    """A loss that every weight has a part in, be it none: no rank waits for a gradient in vain.

    Gradients are those of as many times the loss as there are ranks: DistributedDataParallel
    averages them, and the parts of a batch's loss are to be added up.

    Args:
        part_loss: Returns a loss, and something else.
        ranks: Processes that compute a part each.
    """

    def __init__(self, part_loss: nn.Module, ranks: int) -> None:
        super().__init__()
        self.part_loss = part_loss
        self.weights = [weight for weight in part_loss.parameters() if weight.requires_grad]
        self.enclosed = EnclosedBuffer(self.weights, ranks)
        self.carrier = self.enclosed.carrier

    def forward(self, *args: Any) -> tuple[Tensor, Any]:
        """Return what it returns."""
        # Of what is ready, autograd computes backward first what was computed forward last.
        carried = _Carried.apply(self.carrier, self.enclosed)  # type: ignore[no-untyped-call]
        loss, other = self.part_loss(*args)
        heard = _OfAll.apply(  # type: ignore[no-untyped-call]
            loss, self.enclosed.ranks, carried, *self.weights
        )
        return heard, other


class _Carried(torch.autograd.Function):
    """The identity, whose gradient is the message."""

    @staticmethod
    def forward(ctx: Any, carrier: Tensor, enclosed: EnclosedBuffer) -> Tensor:
        ctx.enclosed = enclosed
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        del gradients
        return ctx.enclosed.message(), None


class _OfAll(torch.autograd.Function):
    """The identity of its first argument; weights get the gradient None."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, ranks: int, *others: Tensor) -> Tensor:
        ctx.ranks, ctx.count = ranks, len(others)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (gradients[0] * ctx.ranks, None, *[None] * ctx.count)

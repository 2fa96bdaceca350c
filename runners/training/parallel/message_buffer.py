"""Numbers that are sent together with the gradients, because a separate message takes time.

DistributedDataParallel sends gradients in buckets, in the order in which they are computed. The
numbers of a process are the gradient of one additional weight, which is computed last. Then the
process knows which of its weights have a gradient. A weight that has no gradient in any process
gets none, as in a training of one process, so that the optimiser does not update it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

NUMBERS = 3
"""A message begins with so many numbers: the loss, and whether to stop and to save. Then there is
one number for each weight: whether it has a gradient."""


class EnclosedBuffer:
    """The numbers that are sent together with the gradients of a model.

    Args:
        weights: All trained weights.
        ranks: Number of processes.
    """

    def __init__(self, weights: Sequence[nn.Parameter], ranks: int) -> None:
        self.weights, self.ranks = weights, ranks
        real = [weight.dtype for weight in weights if weight.is_floating_point()]
        size, dtype = NUMBERS + len(weights), (real or [torch.float32])[0]
        self.carrier = nn.Parameter(torch.zeros(size, dtype=dtype, device=weights[0].device))
        """The additional weight; its gradient is the message."""
        self.closing = True
        """Whether the next backward pass is the last of an update; then it sends."""
        self.sums = torch.empty(0)
        """Sums of the enclosed numbers over all processes, after `settle`."""
        self._numbers: Tensor | None = None  # for the next message
        self._without: list[int] = []  # indices of weights without a gradient in this process

    def enclose(self, numbers: Tensor) -> None:
        """Send `NUMBERS` numbers with the gradients of the next backward pass that sends."""
        self._numbers = numbers

    def message(self) -> Tensor | None:
        """Return the message after the gradients; None if this backward pass sends nothing."""
        if not self.closing:
            return None
        message = torch.ones_like(self.carrier)  # 1 for a weight with a gradient, 0 without one
        self._without = [n for n, weight in enumerate(self.weights) if weight.grad is None]
        if self._without:
            message[[NUMBERS + n for n in self._without]] = 0
        if self._numbers is not None:
            message[:NUMBERS] = self._numbers
        self._numbers = None
        return message

    def settle(self) -> None:
        """Read the received message, and remove gradients of weights that no process has."""
        mean, self.carrier.grad = self.carrier.grad, None  # DDP has averaged it over processes
        assert mean is not None, "there was no backward pass before"
        self.sums = mean[:NUMBERS] * self.ranks
        if self._without:  # otherwise no number must be read from the device
            fractions = mean[NUMBERS:][self._without].tolist()
            for number, fraction in zip(self._without, fractions, strict=True):
                if not fraction:
                    self.weights[number].grad = None


class HeardOf(nn.Module):
    """A loss that formally depends on every weight, so that no process waits for a gradient.

    The loss is multiplied by the number of processes, because DistributedDataParallel averages
    gradients, but the parts of a batch's loss must be added up.

    Args:
        part_loss: Module that returns a loss and another value.
        ranks: Number of processes; each computes a part of the loss.
    """

    def __init__(self, part_loss: nn.Module, ranks: int) -> None:
        super().__init__()
        self.part_loss = part_loss
        self.weights = [weight for weight in part_loss.parameters() if weight.requires_grad]
        self.enclosed = EnclosedBuffer(self.weights, ranks)
        self.carrier = self.enclosed.carrier

    def forward(self, *args: Any) -> tuple[Tensor, Any]:
        """Return the result of `part_loss`; its loss depends on every weight and on the carrier."""
        # Autograd goes backward from what was computed last, so the carrier's gradient comes last.
        carried = _Carried.apply(self.carrier, self.enclosed)  # type: ignore[no-untyped-call]
        loss, other = self.part_loss(*args)
        connected = _OfAll.apply(  # type: ignore[no-untyped-call]
            loss, self.enclosed.ranks, carried, *self.weights
        )
        return connected, other


class _Carried(torch.autograd.Function):
    """The identity; in the backward pass, the gradient of the carrier is the message."""

    @staticmethod
    def forward(ctx: Any, carrier: Tensor, enclosed: EnclosedBuffer) -> Tensor:
        ctx.enclosed = enclosed
        return carrier.view_as(carrier)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None]:
        del gradients
        return ctx.enclosed.message(), None


class _OfAll(torch.autograd.Function):
    """The identity of its first argument, with `ranks` times the gradient; others get None."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, ranks: int, *others: Tensor) -> Tensor:
        ctx.ranks, ctx.count = ranks, len(others)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (gradients[0] * ctx.ranks, None, *[None] * ctx.count)

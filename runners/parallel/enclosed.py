"""Numbers that travel with the last gradients: a message of their own costs as much as a large one.

DistributedDataParallel sends gradients in buckets, and the last when every weight was heard of.
With it goes what ranks tell each other in a step, and which weights have a gradient at all: those
that no rank has one for keep none, as in one process, so that optimisers leave them alone.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Sum = torch.futures.Future[Tensor]


class Enclosed:
    """What is sent with the gradients of one model's weights.

    Args:
        weights: All that are trained.
    """

    def __init__(self, weights: Sequence[nn.Parameter]) -> None:
        self.weights = weights
        self.sums = torch.empty(0)
        """Of what was `put`, after `settle`."""
        self._own: Tensor | None = None
        self._both: Tensor | None = None
        self._without: list[int] = []

    def put(self, numbers: Tensor) -> None:
        """Enclose a row of numbers with the gradients of the next pass backward."""
        self._own = numbers

    def added(self, _: object, bucket: dist.GradBucket) -> Sum:  # type: ignore[name-defined]
        """Add a bucket of gradients up over the ranks; DistributedDataParallel calls it."""
        gradients: Tensor = bucket.buffer()
        if not bucket.is_last():
            return _added(gradients).then(lambda done: done.value()[0])
        self._without = [n for n, weight in enumerate(self.weights) if weight.grad is None]
        had = gradients.new_ones(len(self.weights))
        if self._without:
            had[self._without] = 0
        own = had if self._own is None else torch.cat((self._own.to(had.dtype), had))
        self._own = None

        def parted(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            both = done.value()[0]
            self._both = both[len(gradients) :]
            return gradients.copy_(both[: len(gradients)])

        return _added(torch.cat((gradients, own))).then(parted)

    def settle(self) -> None:
        """Take what came with the gradients, and drop those that no rank had."""
        assert self._both is not None, "a pass backward comes first"
        both, self._both = self._both, None
        self.sums, had = both.tensor_split([len(both) - len(self.weights)])
        if self._without:  # else there is nothing to ask a device for
            for number, count in zip(self._without, had[self._without].tolist(), strict=True):
                if not count:
                    self.weights[number].grad = None


class HeardOf(nn.Module):
    """A loss that every weight has a part in, be it none: no rank waits for a gradient in vain.

    Args:
        part_loss: Returns a loss, and something else.
    """

    def __init__(self, part_loss: nn.Module) -> None:
        super().__init__()
        self.part_loss = part_loss
        self.weights = [weight for weight in part_loss.parameters() if weight.requires_grad]

    def forward(self, *args: Any) -> tuple[Tensor, Any]:
        """Return what it returns."""
        loss, other = self.part_loss(*args)
        return _OfAll.apply(loss, *self.weights), other  # type: ignore[no-untyped-call]


class _OfAll(torch.autograd.Function):
    """The identity of its first argument; the others get no gradient, but are told so."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *weights: Tensor) -> Tensor:
        ctx.count = len(weights)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (gradients[0], *[None] * ctx.count)


def _added(numbers: Tensor) -> torch.futures.Future[list[Tensor]]:
    work = dist.all_reduce(numbers, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[Tensor]] = work.get_future()
    return future

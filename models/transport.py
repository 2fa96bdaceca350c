"""What carries tensors between ranks, and how many bytes a process sends by it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor


class Sent:
    """Bytes that this process sent in operations of a context, forward and backward."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, tensor: Tensor, times: float = 1.0) -> None:
        """Count a tensor that was sent so many times."""
        self.bytes += round(tensor.numel() * tensor.element_size() * times)


SENT = Sent()
"""Of this process, since it began."""


@contextmanager
def counting_sent() -> Iterator[Sent]:
    """Count in the object that is returned what this process sends meanwhile."""
    sent, before = Sent(), SENT.bytes
    try:
        yield sent
    finally:
        sent.bytes = SENT.bytes - before


class Request(Protocol):
    """A transfer that has begun."""

    def wait(self) -> object:
        """Return when it is complete."""
        ...


Addressed: TypeAlias = list[tuple[int, Tensor]]
"""Tensors with the rank of the group that each goes to, or comes from."""


class Transport(Protocol):
    """What carries tensors between the ranks of a group."""

    @property
    def rank(self) -> int:
        """This process among those of the group."""
        ...

    @property
    def ranks(self) -> int:
        """How many there are."""
        ...

    def start(self, sends: Addressed, receives: Addressed) -> Sequence[Request]:
        """Begin to send contiguous tensors, and to receive into others."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Return the contiguous tensors of all ranks, [ranks *x]."""
        ...

    def reduce(self, x: Tensor, *, largest: bool = False) -> None:
        """Write the sum over ranks of a contiguous tensor, or its maximum, in its place."""
        ...


class Processes:
    """The processes of a `torch.distributed` group; None: of the default one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)

    def start(self, sends: Addressed, receives: Addressed) -> Sequence[Request]:
        """Begin to send and to receive, as bytes, whatever the type."""
        operations = [
            dist.P2POp(kind, x.view(-1).view(torch.uint8), self.peer(rank), group=self.group)
            for kind, parts in ((dist.isend, sends), (dist.irecv, receives))
            for rank, x in parts
        ]
        return dist.batch_isend_irecv(operations) if operations else []

    def peer(self, rank: int) -> int:
        """Return the number among all processes of a rank of the group."""
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def gather(self, x: Tensor) -> Tensor:
        """Return the tensors of all ranks."""
        whole = x.new_empty((self.ranks, *x.shape))
        boxes = whole.view(self.ranks, -1).view(torch.uint8)
        dist.all_gather([*boxes], x.view(-1).view(torch.uint8), group=self.group)
        return whole

    def reduce(self, x: Tensor, *, largest: bool = False) -> None:
        """Reduce in place."""
        dist.all_reduce(x, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, group=self.group)

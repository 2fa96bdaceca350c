"""The processes of one cell: who takes which rows, what is added up, and what is decided together.

Every rank reads the same batches as one process would, takes its own rows of each, and divides by
the weight of the whole batch. So sums over ranks are what one process computes, but for rounding,
also where a batch does not divide evenly.
"""

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lra.runners.measurement.hardware import Device, HardwareProfile
from lra.runners.training.parallel.message_buffer import EnclosedBuffer
from lra.runners.training.prefetch import rows_of
from lra.tasks.task import Batch


class Ranks:
    """This process's place among those of its cell; without arguments, a process alone.

    Args:
        rank: Its number, from 0.
        size: Processes in all.
        sharded: Whether weights are shared out.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, sharded: bool = False) -> None:
        self.rank, self.size, self.sharded = rank, size, sharded
        self._sent: Callable[[], Tensor] | None = None
        self._decided = [False, False]

    @property
    def alone(self) -> bool:
        """Whether there is one process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Whether this one writes what is written once."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """Return which of `count` rows are this rank's; shares differ by 1 at most."""
        share, more = divmod(count, self.size)
        begin = self.rank * share + min(self.rank, more)
        return slice(begin, begin + share + (self.rank < more))

    def part_of(self, batch: Batch) -> Batch:
        """Return this rank's rows of a batch."""
        if self.alone:
            return batch
        return rows_of(batch, self.rows(len(batch.target)))

    def send(self, loss: Tensor, *requests: bool, enclosed: EnclosedBuffer | None = None) -> None:
        """Begin to add up the ranks' parts of a loss, while gradients are computed.

        Args:
            loss: This rank's part, on its device; it becomes the sum in `received`.
            requests: Of this rank: to stop, and to save.
            enclosed: What sends it with the gradients; None: it is sent alone.
        """
        message = torch.tensor([float(request) for request in requests], dtype=torch.float64)
        if loss.device.type == "cpu":
            message = torch.cat((loss.double().view(1), message))
            if enclosed is not None:
                enclosed.enclose(message)
                self._sent = lambda: enclosed.sums
                return
        else:
            dist.all_reduce(loss)
        work = dist.all_reduce(message, async_op=True)

        def arrived() -> Tensor:
            work.wait()
            return message

        self._sent = arrived

    def received(self, loss: Tensor) -> Tensor:
        """Return the sum of the losses passed to `send`."""
        assert self._sent is not None, "send comes first"
        sums, self._sent = self._sent(), None
        self._decided = [bool(request) for request in sums[-2:].tolist()]
        return sums[0].to(loss.dtype) if loss.device.type == "cpu" else loss

    def decided(self, *requests: bool) -> Sequence[bool]:
        """Return what all ranks do after a step: what any of them requested at its beginning."""
        return requests if self.alone else self._decided

    def any(self, condition: bool) -> bool:
        """Tell whether the condition holds on any rank; all must ask at the same moment."""
        if self.alone:
            return condition
        count = torch.tensor(float(condition))
        dist.all_reduce(count)
        return bool(count)

    def largest(self, value: float) -> float:
        """Return the largest of the ranks' values."""
        if self.alone:
            return value
        maximum = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
        return float(maximum)

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. Tensors travel by way of the CPU."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until every rank is here."""
        if not self.alone:
            self.any(False)


_ENDED = list[Any]()
"""Groups that were left. The frames of an exception may hold what uses a group: freed with them,
it would wait for its own thread, which may wait for the lock of the interpreter."""


@contextmanager
def join_ranks(hardware: HardwareProfile) -> Iterator[Ranks]:
    """Join the processes of this cell, as `lra.runners.isolation` or torchrun started them.

    Messages between GPUs go by NCCL, all others by gloo.

    Raises:
        ValueError: this process was not started as one of so many.
    """
    if hardware.processes == 1:
        yield Ranks()
        return
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != hardware.processes:
        raise ValueError(
            f"hardware.processes={hardware.processes}: this process was started as one of "
            f"{started}; start the run with `lra run`, or with torchrun and the same number of "
            "processes"
        )
    initialised = dist.is_initialized()  # then it is the caller's, who ends it
    backend = "gloo"
    if hardware.device is Device.cuda:
        local = int(os.environ["LOCAL_RANK"])
        available = torch.cuda.device_count()
        if local >= available:
            raise ValueError(
                f"hardware.processes={hardware.processes}: each process needs a separate GPU, "
                f"and there are {available} here; lower it"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    if not initialised:
        dist.init_process_group(backend)
    try:
        yield Ranks(dist.get_rank(), started, sharded=hardware.sharded)
    finally:
        # What holds a group must be gone before it: a later end aborts the process.
        gc.collect()
        if not initialised:
            _ENDED.append(dist.group.WORLD)
            dist.destroy_process_group()

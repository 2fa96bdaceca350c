"""The processes of one run: which rows each takes, what they sum, and what they decide together.

Every process (rank) reads the same batches as a single process would, takes its rows of each batch,
and divides by the weight of the whole batch. So the sums over ranks equal the numbers of a single
process except for rounding, even if ranks have different numbers of rows.
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
    """This process among the processes of its run; without arguments, it is the only one.

    Args:
        rank: Number of this process, from 0.
        size: Number of all processes.
        sharded: Whether weights are split among the processes.
    """

    def __init__(self, rank: int = 0, size: int = 1, *, sharded: bool = False) -> None:
        self.rank, self.size, self.sharded = rank, size, sharded
        # Returns the sums of what `send` sent: the loss (on a CPU), and requests to stop and save.
        self._sent: Callable[[], Tensor] | None = None
        self._decided = [False, False]  # whether any process asked to stop, and to save

    @property
    def alone(self) -> bool:
        """Return whether there is only one process."""
        return self.size == 1

    @property
    def first(self) -> bool:
        """Return whether this is the first process, which writes files."""
        return self.rank == 0

    def rows(self, count: int) -> slice:
        """Return which of `count` rows this process takes; parts differ by at most one row."""
        share, rest = divmod(count, self.size)
        begin = self.rank * share + min(self.rank, rest)
        return slice(begin, begin + share + (self.rank < rest))

    def part_of(self, batch: Batch) -> Batch:
        """Return the rows of a batch that this process takes."""
        if self.alone:
            return batch
        return rows_of(batch, self.rows(len(batch.target)))

    def send(self, loss: Tensor, *requests: bool, enclosed: EnclosedBuffer | None = None) -> None:
        """Start to sum the losses and requests of all processes, while gradients are computed.

        Args:
            loss: Part of the loss of this process; `received` returns the sum.
            requests: Whether this process asks to stop, and whether to save.
            enclosed: Sends the numbers together with the gradients; None: they are sent alone.
        """
        message = torch.tensor([float(request) for request in requests], dtype=torch.float64)
        if loss.device.type == "cpu":
            message = torch.cat((loss.double().view(1), message))
            if enclosed is not None:
                enclosed.enclose(message)
                self._sent = lambda: enclosed.sums
                return
        else:
            dist.all_reduce(loss)  # in place on the GPU; reading `message` then waits for no GPU
        work = dist.all_reduce(message, async_op=True)

        def wait_for_sums() -> Tensor:
            work.wait()
            return message

        self._sent = wait_for_sums

    def received(self, loss: Tensor) -> Tensor:
        """Return the sum of the losses that all processes passed to `send`."""
        assert self._sent is not None, "`send` was not called before"
        sums, self._sent = self._sent(), None
        self._decided = [bool(request) for request in sums[-2:].tolist()]
        return sums[0].to(loss.dtype) if loss.device.type == "cpu" else loss

    def decided(self, *requests: bool) -> Sequence[bool]:
        """Return the requests that all processes follow: those that any process sent."""
        return requests if self.alone else self._decided

    def any(self, condition: bool) -> bool:
        """Return whether the condition is True in any process; all processes must call this."""
        if self.alone:
            return condition
        count = torch.tensor(float(condition))
        dist.all_reduce(count)
        return bool(count)

    def largest(self, value: float) -> float:
        """Return the largest value of all processes; all processes must call this."""
        if self.alone:
            return value
        maximum = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
        return float(maximum)

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all processes in their order; all processes must call this."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if not self.alone:
            self.any(False)  # a sum is complete only when all have sent their part


_ENDED = list[Any]()
"""Groups that were destroyed. They stay referenced, because freeing one with the frames of an
exception may wait for a thread that waits for the lock of the interpreter."""


@contextmanager
def join_ranks(hardware: HardwareProfile) -> Iterator[Ranks]:
    """Connect this process with the others of its run, which lra or torchrun has started.

    Messages between GPUs use NCCL, all others use gloo.

    Raises:
        ValueError: the number of started processes is not `hardware.processes`, or there are too
            few GPUs.
    """
    if hardware.processes == 1:
        yield Ranks()
        return
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != hardware.processes:
        raise ValueError(
            f"hardware.processes={hardware.processes}, but {started} process"
            f"{'' if started == 1 else 'es'} started; start the run with `lra run`, or with "
            "torchrun and the same number of processes"
        )
    initialised = dist.is_initialized()  # then the caller also destroys the group
    backend = "gloo"
    if hardware.device is Device.cuda:
        local = int(os.environ["LOCAL_RANK"])
        available = torch.cuda.device_count()
        if local >= available:
            raise ValueError(
                f"hardware.processes={hardware.processes} needs as many GPUs, but this machine has "
                f"{available}; lower hardware.processes"
            )
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    if not initialised:
        dist.init_process_group(backend)
    try:
        yield Ranks(dist.get_rank(), started, sharded=hardware.sharded)
    finally:
        # Objects that use the group must be freed before it; otherwise the process aborts.
        gc.collect()
        if not initialised:
            _ENDED.append(dist.group.WORLD)
            dist.destroy_process_group()

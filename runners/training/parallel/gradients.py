"""Gradients of one model on several processes: replicas (DDP), or shared weights (FSDP2).

Each rank's loss is its part of the batch's, so that gradients are added up.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lra.models.backbone.model import Backbone, Outcome
from lra.models.backbone.reversible import ReversibleStack
from lra.models.mixer import Penalised, State, Unsupported
from lra.models.state import detach
from lra.runners.training.learned_spans import LearnsSpans
from lra.runners.training.objective import objective
from lra.runners.training.optim import OptimConfig, Optimiser
from lra.runners.training.parallel.message_buffer import EnclosedBuffer, HeardOf
from lra.runners.training.prefetch import masks_of
from lra.tasks.task import Batch

SHARDED = (Optimiser.adamw, Optimiser.adam, Optimiser.radam, Optimiser.sgd, Optimiser.lion)
"""Optimisers that update each entry separately, and so work on a part of a weight."""


class PartLoss(nn.Module):
    """The loss of some rows of a batch, as a part of the batch's, and what is remembered of them.

    Args:
        model: What is trained.
        judged: Makes an outcome of rows: the model, or what calls it.
        label_smoothing: Of the training.
    """

    def __init__(
        self, model: Backbone, judged: Callable[..., Outcome], label_smoothing: float
    ) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing
        self.judged = [judged]  # in a list, for a module would be registered twice

    def forward(
        self, part: Batch, state: State, total: Tensor | float, share: float
    ) -> tuple[Tensor, State]:
        """Return loss and state; see `lra.runners.training.objective.objective`."""
        outcome = self.judged[0](
            part.tokens, part.target, part.keep, state, self.label_smoothing, layout=masks_of(part)
        )
        return objective(outcome, part.weight, total, share), detach(outcome.state)


class SynchronisedLoss:
    """Computes the loss on several ranks, and sums the gradients afterwards.

    Args:
        part_loss: Computes a part's.
        sharded: Whether the model's weights are shared out.
    """

    def __init__(self, part_loss: PartLoss, *, sharded: bool) -> None:
        self.part_loss, self.sharded = part_loss, sharded
        self.call: nn.Module = part_loss
        self.enclosed: EnclosedBuffer | None = None
        """What travels with the gradients, where weights are not shared out."""
        if not sharded:
            heard = HeardOf(part_loss, dist.get_world_size())
            self.enclosed = heard.enclosed
            with warnings.catch_warnings():
                # Buffers change alike everywhere; from 2.13 on it is called forward_sync_buffers.
                warnings.simplefilter("ignore", FutureWarning)
                self.call = DistributedDataParallel(heard, broadcast_buffers=False)

    @contextmanager
    def adding(self, *, last: bool) -> Iterator[None]:
        """Enter a pass forward and backward; the last of an update adds up."""
        if self.enclosed is not None:
            self.enclosed.closing = last
        if isinstance(self.call, DistributedDataParallel) and not last:
            with self.call.no_sync():
                yield
            return
        yield
        if self.enclosed is not None:
            self.enclosed.settle()


def shard(model: Backbone, optim: OptimConfig, device: torch.device) -> None:
    """Share a model's weights out, block by block.

    Raises:
        Unsupported: its weights, or the optimiser, cannot be parted.
    """
    # Here, for it takes half a second, which nobody else need spend.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if optim.optimiser not in SHARDED or optim.tensor_clip is not None:
        raise Unsupported(
            f"hardware.sharded=true: optim={optim.optimiser} needs whole weights, but each "
            f"process stores only a part of them: choose {', '.join(SHARDED)}, or "
            "hardware.sharded=false"
        )
    if any(isinstance(module, ReversibleStack) for module in model.modules()):
        raise Unsupported(
            "hardware.sharded=true: residual=reversible recomputes parts of a block, but "
            "weights are gathered for whole blocks: choose residual=pre_norm with "
            "activation_checkpointing=true, or hardware.sharded=false"
        )
    for module in model.modules():
        if isinstance(module, LearnsSpans) or (
            isinstance(module, Penalised) and module.penalties()
        ):
            raise Unsupported(
                f"hardware.sharded=true: {type(module).__name__} reads its weights outside its "
                "block, where each process stores only a part (for a penalty, or to report "
                "them): choose hardware.sharded=false"
            )
    blocks = list(model.blocks)
    owners: dict[nn.Parameter, nn.Module] = {}
    for module in (*dict.fromkeys(blocks), model):
        inside = {p for block in blocks for p in block.parameters()} if module is model else set()
        for name, parameter in module.named_parameters():
            if owners.setdefault(parameter, module) is not module and parameter not in inside:
                raise Unsupported(
                    f"hardware.sharded=true: {name} is a weight of several blocks, but the "
                    "weights of each block are split separately: choose hardware.sharded=false"
                )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*dict.fromkeys(blocks), model):
        # The root's weights go as well: averages of weights are put in between two passes.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo multiplies nothing on its way
    # Said of a loss that comes as a view; nothing here changes one in place.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")

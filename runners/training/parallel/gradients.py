"""Gradients of one model on several processes: replicas (DDP), or sharded weights (FSDP2).

Each process computes its part of the loss of a batch, so gradients are added up.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lra.models.backbone.loop import TrainPasses
from lra.models.backbone.model import Backbone, Outcome
from lra.models.backbone.reversible import ReversibleStack
from lra.models.mixer import Penalised, State, Unsupported
from lra.models.state import detach
from lra.runners.training.learned_spans import LearnsSpans
from lra.runners.training.objective import objective
from lra.runners.training.optim import OptimConfig, Optimiser
from lra.runners.training.parallel.message_buffer import EnclosedBuffer, HeardOf
from lra.runners.training.parallel.ranks import Ranks
from lra.runners.training.prefetch import masks_of
from lra.tasks.task import Batch

SHARDED = (Optimiser.adamw, Optimiser.adam, Optimiser.radam, Optimiser.sgd, Optimiser.lion)
"""Optimisers that update each entry separately, so they can update a part of a weight."""


class PartLoss(nn.Module):
    """Computes the part of a batch's loss that some rows have, and their recurrent state.

    Args:
        model: The model that is trained.
        judged: Function that computes the outcome of rows: the model, or one that calls it.
        label_smoothing: Label smoothing of the training.
    """

    def __init__(
        self, model: Backbone, judged: Callable[..., Outcome], label_smoothing: float
    ) -> None:
        super().__init__()
        self.model, self.label_smoothing = model, label_smoothing
        self.penalties: dict[str, Tensor] = {}
        """Penalties of the rows since this was cleared, by name, as parts of the batch's loss."""
        self.judged = [judged]  # in a list, so that a module is not registered twice

    def forward(
        self,
        part: Batch,
        asked: Tensor | None,
        state: State,
        total: Tensor | float,
        share: float,
    ) -> tuple[Tensor, State]:
        """Return the loss of the rows `part` (see `objective`), and their state afterwards.

        `asked` numbers the items that have a weight (see `asked_of`).
        """
        outcome = self.judged[0](
            part.tokens,
            part.target,
            part.keep,
            state,
            self.label_smoothing,
            layout=masks_of(part),
            asked=asked,
        )
        for name, value in outcome.penalties.items():
            self.penalties[name] = self.penalties.get(name, 0) + share * value.detach()
        return objective(outcome, part.weight, total, share), detach(outcome.state)

    def losses(self, mean: float, ranks: Ranks) -> Iterator[tuple[str, float, dict[str, str]]]:
        """Yield metric, value and labels of the mean loss, and of the penalties of a step.

        Penalties are summed over processes, all of which must call this.
        """
        yield "train_loss", mean, {}
        own = {name: float(value) for name, value in self.penalties.items()}
        parts = [own] if ranks.alone else ranks.gathered(own)
        for name in own:
            yield "train_penalty", sum(part[name] for part in parts), {"penalty": name}


class SynchronisedLoss:
    """Computes the loss on several processes, and sums their gradients.

    Args:
        part_loss: Computes the loss of this process's rows.
        sharded: Whether the weights of the model are split among the processes.
    """

    def __init__(self, part_loss: PartLoss, *, sharded: bool) -> None:
        self.part_loss, self.sharded = part_loss, sharded
        self.call: nn.Module = part_loss
        self.enclosed: EnclosedBuffer | None = None
        """The numbers that are sent with the gradients; None for sharded weights."""
        if not sharded:
            heard = HeardOf(part_loss, dist.get_world_size())
            self.enclosed = heard.enclosed
            with warnings.catch_warnings():
                # Buffers change equally in all processes. PyTorch 2.13 renames the argument to
                # forward_sync_buffers, and warns.
                warnings.simplefilter("ignore", FutureWarning)
                self.call = DistributedDataParallel(heard, broadcast_buffers=False)

    @contextmanager
    def adding(self, *, last: bool) -> Iterator[None]:
        """Return a context for a forward and backward pass; the last pass of an update sums."""
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
    """Split the weights of each block of a model among the processes (FSDP2).

    Raises:
        Unsupported: the optimiser or the model needs whole weights.
    """
    # Imported here, because the import takes half a second and few trainings need it.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    if optim.optimiser not in SHARDED or optim.tensor_clip is not None:
        raise Unsupported(
            f"hardware.sharded=true stores only a part of each weight in a process, but "
            f"optim={optim.optimiser} needs whole weights: choose {', '.join(SHARDED)}, or "
            "hardware.sharded=false"
        )
    if any(isinstance(module, ReversibleStack) for module in model.modules()):
        raise Unsupported(
            "hardware.sharded=true gathers the weights of whole blocks, but residual=reversible "
            "computes parts of a block again: choose residual=pre_norm with "
            "activation_checkpointing=true, or hardware.sharded=false"
        )
    if model.config.loop_train_passes == TrainPasses.poisson:
        raise Unsupported(
            "hardware.sharded=true needs every process to apply the same blocks equally often, but "
            "loop_train_passes=poisson draws another number of passes in each: set "
            "model.backbone.loop_train_passes=fixed, or hardware.sharded=false"
        )
    for module in model.modules():
        if isinstance(module, LearnsSpans) or (
            isinstance(module, Penalised) and module.penalties()
        ):
            raise Unsupported(
                f"hardware.sharded=true gathers weights only for the pass of a block, but "
                f"{type(module).__name__} also needs them at other times (for a penalty, or to "
                "report them): choose hardware.sharded=false"
            )
    blocks = list(model.blocks)
    owners: dict[nn.Parameter, nn.Module] = {}
    for module in (*dict.fromkeys(blocks), model):
        # The whole model, which comes last, also has the parameters of its blocks.
        in_blocks = {p for b in blocks for p in b.parameters()} if module is model else set()
        for name, parameter in module.named_parameters():
            if owners.setdefault(parameter, module) is not module and parameter not in in_blocks:
                raise Unsupported(
                    f"hardware.sharded=true splits the weights of each block separately, but "
                    f"several blocks share the weight {name}: choose hardware.sharded=false"
                )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*dict.fromkeys(blocks), model):
        # The root frees its weights after a pass, too, because averages may replace them.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        assert isinstance(module, FSDPModule)
        module.set_gradient_divide_factor(1.0)  # gradients are added up, not averaged
        module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it sums
    # The warning concerns a loss that is a view and is changed in place; here none is changed.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")

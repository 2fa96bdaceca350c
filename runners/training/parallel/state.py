"""The state of a training on several processes: one file, as one process writes it.

So a training goes on with any number of them. What differs by rank, the random numbers of dropout,
stands under `ranks`, and is read by the same number of processes alone.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lra.models.backbone.model import Backbone
from lra.models.mixer import State
from lra.models.state import join, map_state, select
from lra.runners.training.parallel.gradients import PartLoss, SynchronisedLoss
from lra.runners.training.parallel.ranks import Ranks
from lra.runners.training.parallel.shards import gather_tree, like
from lra.runners.training.parallel.traffic import Traffic
from lra.runners.training.resume import RANKS
from lra.runners.training.updates import WeightUpdates
from lra.tasks.task import Batch


def rank_seed(seed: int, rank: int, step: int = 0) -> int:
    """Return the seed of one rank's dropout; that of the first rank at step 0 is the run's."""
    if not rank and not step:
        return seed
    text = hashlib.sha256(f"rank {seed} {rank} {step}".encode()).digest()
    return int.from_bytes(text[:7], "big")


def restore_random(state: Mapping[str, Any], ranks: Ranks, device: torch.device, seed: int) -> None:
    """Restore this rank's random state; a rank that has none starts from a seed of its own."""
    by_rank = state.get(RANKS) or []
    if len(by_rank) == ranks.size and ranks.size > 1:
        random = by_rank[ranks.rank]
    elif ranks.first:
        random = state
    else:
        torch.manual_seed(rank_seed(seed, ranks.rank, int(state["step"])))
        return
    torch.set_rng_state(random["random"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda_random"], device)


class Together(SynchronisedLoss):
    """What several processes do together in a training.

    Args:
        part_loss: The loss of a part of a batch.
        ranks: This process's place.
    """

    def __init__(self, part_loss: PartLoss, ranks: Ranks) -> None:
        super().__init__(part_loss, sharded=ranks.sharded)
        self.ranks = ranks
        self.steps = self.tokens = 0
        """Of this process's life, of whole batches."""
        self.begun_s = 0.0
        """Time of the steps before it."""
        self.bytes_sent: float | None = None

    def begin(self, step: int, spent_s: float) -> None:
        """Begin at a step, the same on every rank.

        Raises:
            RuntimeError: some read another checkpoint.
        """
        steps = self.ranks.gathered(step)
        if len({*steps}) > 1:
            raise RuntimeError(
                f"the processes would resume at different steps, {steps}: wanted the same step "
                "for all"
            )
        self.begun_s = spent_s

    def counted_step(self, step: Callable[[], Tensor], batch: Batch) -> Tensor:
        """Take a step; count tokens, and in the third, when all is set up, the bytes sent."""
        self.steps += 1
        self.tokens += batch.tokens.numel()
        if self.steps != 3:
            return step()
        with Traffic() as traffic:
            loss = step()
        self.bytes_sent = traffic.sent
        return loss

    def whole_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return what one process would write. All ranks must call; the first has the result."""
        keep, ranks = self.ranks.first, self.ranks
        random = {name: state[name] for name in ("random", "cuda_random") if name in state}
        streams = map_state(Tensor.cpu, state["streams"])
        joined: dict[str, Any] = gather_tree(state, keep=keep)
        every = ranks.gathered((random, streams))
        parts: list[State] = [part for _, part in every]
        joined["streams"] = None if parts[0] is None else join(*parts)
        joined[RANKS] = [rank_random for rank_random, _ in every]
        if "gradients" in state and not ranks.sharded:
            joined["gradients"] = self._averaged(state["gradients"])
        return joined

    def _averaged(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what one process would have accumulated since the last update: see `HeardOf`."""
        averages = {}
        names = {name for names in self.ranks.gathered([*gradients]) for name in names}
        for name, weight in self.part_loss.model.named_parameters():
            if name in names:
                gradient = gradients.get(name)
                averages[name] = torch.zeros_like(weight) if gradient is None else gradient.clone()
                dist.all_reduce(averages[name])
                averages[name] /= self.ranks.size
        return averages

    def rank_state(
        self,
        state: Mapping[str, Any],
        model: Backbone,
        updates: WeightUpdates,
        device: torch.device,
    ) -> dict[str, Any]:
        """Return this rank's part of what `whole_state` returned, on any number of ranks."""
        del device
        part = dict(state)
        if (streams := state["streams"]) is not None:
            rows = _stream_count(streams)
            part["streams"] = select(streams, self.ranks.rows(rows))
        if not self.ranks.sharded:
            return part
        weights = model.state_dict()
        named = {n: like(v, weights[n]) for n, v in state["model"].items()}
        part["model"] = named
        for key in ("average", "gradients"):
            if key in state:
                part[key] = {n: like(v, weights[n]) for n, v in state[key].items()}
        if state["best"]:
            best = {n: like(v, weights[n]) for n, v in state["best"]["weights"].items()}
            part["best"] = {**state["best"], "weights": best}
        moved = [p for group in updates.optimiser.param_groups for p in group["params"]]
        memory = {
            index: {name: like(value, moved[index]) for name, value in values.items()}
            for index, values in state["optimiser"]["state"].items()
        }
        part["optimiser"] = {**state["optimiser"], "state": memory}
        return part


def _stream_count(state: State) -> int:
    if isinstance(state, Tensor):
        return len(state)
    assert state is not None, "a state of streams holds tensors"
    return max(_stream_count(part) for part in state if part is not None)

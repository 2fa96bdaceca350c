"""The state of a training on several processes: one file, equal to the file of a single process.

So a training can continue with any number of processes. The states of random generators for dropout
differ by process; they are in the entry `ranks`, and only the same number of processes reads them.
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
    """Return the seed of one process's dropout; the first one has the run's seed at step 0."""
    if not rank and not step:
        return seed
    text = hashlib.sha256(f"rank {seed} {rank} {step}".encode()).digest()
    return int.from_bytes(text[:7], "big")  # a seed of PyTorch has less than 8 bytes


def restore_random(state: Mapping[str, Any], ranks: Ranks, device: torch.device, seed: int) -> None:
    """Restore the random state of this process; without a stored one, it starts from a seed."""
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
    """The steps and states that several processes share in a training.

    Args:
        part_loss: Computes the loss of a part of a batch.
        ranks: The processes.
    """

    def __init__(self, part_loss: PartLoss, ranks: Ranks) -> None:
        super().__init__(part_loss, sharded=ranks.sharded)
        self.ranks = ranks
        self.steps = self.tokens = 0
        """Steps since this process started, and the tokens of their whole batches."""
        self.begun_s = 0.0
        """Time of the steps before this process started."""
        self.bytes_sent: float | None = None

    def begin(self, step: int, spent_s: float) -> None:
        """Start at a step, after `spent_s` seconds of earlier steps; all processes must call this.

        Raises:
            RuntimeError: the processes start at different steps.
        """
        steps = self.ranks.gathered(step)
        if len({*steps}) > 1:
            raise RuntimeError(
                f"the processes must resume at the same step, but read checkpoints of the steps "
                f"{steps}"
            )
        self.begun_s = spent_s

    def counted_step(self, step: Callable[[], Tensor], batch: Batch) -> Tensor:
        """Call `step` and return its loss; count tokens, and in the third step the bytes sent."""
        self.steps += 1
        self.tokens += batch.tokens.numel()
        if self.steps != 3:  # the first steps set up connections and buckets of gradients
            return step()
        with Traffic() as traffic:
            loss = step()
        self.bytes_sent = traffic.sent
        return loss

    def whole_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state that a single process would write; only the first process has it.

        All processes must call this.
        """
        keep, ranks = self.ranks.first, self.ranks
        random = {name: state[name] for name in ("random", "cuda_random") if name in state}
        streams = map_state(Tensor.cpu, state["streams"])
        joined: dict[str, Any] = gather_tree(state, keep=keep)
        by_rank = ranks.gathered((random, streams))
        parts: list[State] = [part for _, part in by_rank]
        joined["streams"] = None if parts[0] is None else join(*parts)
        joined[RANKS] = [rank_random for rank_random, _ in by_rank]
        if "gradients" in state and not ranks.sharded:
            joined["gradients"] = self._average_gradients(state["gradients"])
        return joined

    def _average_gradients(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradients that one process would have since the last update: see `HeardOf`."""
        averages = {}
        names = {name for rank_names in self.ranks.gathered([*gradients]) for name in rank_names}
        for name, weight in self.part_loss.model.named_parameters():
            if name in names:
                gradient = gradients.get(name)
                averages[name] = torch.zeros_like(weight) if gradient is None else gradient.clone()
                dist.all_reduce(averages[name])
                averages[name] /= self.ranks.size  # by which `HeardOf` multiplied each gradient
        return averages

    def rank_state(
        self,
        state: Mapping[str, Any],
        model: Backbone,
        updates: WeightUpdates,
        device: torch.device,
    ) -> dict[str, Any]:
        """Return the part of a whole state that this process needs, for any number of processes.

        Rows of recurrent states are divided; with sharded weights, tensors are split like weights.
        """
        del device
        part = dict(state)
        if (streams := state["streams"]) is not None:
            rows = _count_rows(streams)
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
        parameters = [p for group in updates.optimiser.param_groups for p in group["params"]]
        memory = {
            index: {name: like(value, parameters[index]) for name, value in values.items()}
            for index, values in state["optimiser"]["state"].items()
        }
        part["optimiser"] = {**state["optimiser"], "state": memory}
        return part


def _count_rows(state: State) -> int:
    """Return how many rows the tensors of a recurrent state have in their first dimension."""
    if isinstance(state, Tensor):
        return len(state)
    assert state is not None, "a recurrent state must have a tensor"
    return max(_count_rows(part) for part in state if part is not None)

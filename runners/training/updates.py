"""One update of the weights: learning rate, clipping of gradients, optimiser and average."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lra.models.tuning import TrainsAlone
from lra.runners.training.averaging import TriggeredAverage, WeightAverage
from lra.runners.training.optim import OptimConfig, Schedule
from lra.runners.training.optimisers.build import build_optimiser, set_rates
from lra.runners.training.optimisers.groups import tunings
from lra.runners.training.parallel.shards import full_tensor
from lra.runners.training.schedules import Plateau, learning_rate, momentum


class WeightUpdates:
    """Updates a model's weights: optimiser, schedule, clipping and average, with their state.

    Args:
        model: The model, on the device on which it is trained.
        config: Optimiser, schedule, clipping and averaging.
        half: Whether gradients are scaled, because they are in float16.
    """

    def __init__(self, model: nn.Module, config: OptimConfig, *, half: bool) -> None:
        self.model, self.config = model, config
        self.optimiser = build_optimiser(model, config)
        self.parameter_clips = parameter_clips(model)
        device = next(model.parameters()).device
        self.scaler = torch.amp.GradScaler(device.type, enabled=half)
        self.plateau = Plateau(config) if config.schedule is Schedule.plateau else None
        self.scale = 1.0
        """Factor by which the stage of the training multiplies the rate of the schedule."""
        self.only: str | None = None
        """Part of the names of the parameters that are updated; None: all are."""
        self.watched = False
        """Whether the next update computes the norm of the gradient, which takes time."""
        self.gradient_norm: Tensor | None = None
        """Norm of the gradient in the last update; None: not computed. See `clip_gradients`."""
        self.average: WeightAverage | None = None
        if config.ema_decay is not None:
            self.average = WeightAverage(model, config.ema_decay, warmup=config.ema_warmup)
        elif config.average_after is not None:
            self.average = TriggeredAverage(model, config.average_after)

    def rate(self, step: int) -> float:
        """Return the learning rate of update number `step`, counted from 0."""
        reduction = self.plateau.reduction if self.plateau else 1.0
        return learning_rate(self.config, step, reduction) * self.scale

    def begin(self, step: int, scale: float = 1.0, only: str | None = None) -> None:
        """Set momentum and learning rate of update number `step`; `scale` multiplies the rate.

        If `only` is not None, only parameters with this part in their names are updated.
        """
        if only != self.only:
            self.train_only(only)
        self.scale = scale
        set_rates(self.optimiser, self.rate(step), momentum(self.config, step))

    def train_only(self, part: str | None) -> None:
        """Update only parameters with `part` in their names; None: all parameters."""
        self.only = part
        for module in self.model.modules():
            if isinstance(module, TrainsAlone):
                module.alone = part or ""

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of a part of the batch's loss, and add it to the earlier parts."""
        torch.autograd.backward(self.scaler.scale(loss))

    def apply(self) -> bool:
        """Update the weights by the gradient, and clear the gradient.

        Returns:
            Whether the weights changed; they do not if the gradient overflowed in float16.
        """
        for name, parameter in self.model.named_parameters() if self.only is not None else ():
            if self.only not in name.split("."):
                parameter.grad = None
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimiser)
        self.gradient_norm = clip_gradients(
            self.model, self.config, self.parameter_clips, norm=self.watched
        )
        scale_before = self.scaler.get_scale()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
        return self.scaler.get_scale() >= scale_before  # the scaler lowers it after an overflow

    def judged(self, score: float) -> None:
        """Report the score of a validation to schedule and average; higher is better."""
        if self.plateau:
            self.plateau.see(score)
        if isinstance(self.average, TriggeredAverage):
            self.average.see(score)

    @property
    def begun(self) -> WeightAverage | None:
        """Return the average of the weights, or None if there is none or it has not started."""
        return self.average if self.average and self.average.begun else None

    def evaluated(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights that are evaluated."""
        return self.begun.applied() if self.begun else nullcontext()

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: optimiser, scaler, and plateau and average if used."""
        state: dict[str, Any] = {
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        if self.plateau:
            state["plateau"] = self.plateau.state()
        if self.average:
            state["average"] = self.average.averages
            state["trigger"] = self.average.state()
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `lra.runners.training.resume.misfit` has checked."""
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if self.plateau:
            self.plateau.restore(state["plateau"])
        if self.average:
            self.average.restore(state["average"], state["trigger"])


def clip_gradients(
    model: nn.Module,
    config: OptimConfig,
    limits: Mapping[nn.Parameter, float],
    *,
    norm: bool = False,
) -> Tensor | None:
    """Clip the gradients of a model in three steps, and return their norm before the third.

    First the gradient of each parameter in `limits` is clipped by its norm; then each entry is
    clipped to `config.clip_value`; then all gradients are clipped by their norm to `config.clip`.

    Args:
        model: The model that is trained.
        config: The limits of entries and of the norm of all gradients; None: no limit.
        limits: Limits of the norms of single parameters.
        norm: Whether to compute the norm even if `config.clip` is None.

    Returns:
        The Euclidean norm of all gradients; None if it was not computed.
    """
    for parameter, limit in limits.items():
        nn.utils.clip_grad_norm_([parameter], limit)
    if config.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), config.clip_value)
    if config.clip is not None:
        return full_tensor(nn.utils.clip_grad_norm_(model.parameters(), config.clip))
    if norm:
        return nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
    return None


def parameter_clips(model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the parameters that a module wants clipped separately, with their limits."""
    return {p: tuning.clip for p, tuning in tunings(model) if tuning.clip is not None}

"""From a name to an optimiser over a model, and what a checkpoint holds of each parameter."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra.runners.training.optim import OptimConfig, Optimiser
from lra.runners.training.optimisers.adagrad import ClippedAdagrad
from lra.runners.training.optimisers.groups import parameter_groups
from lra.runners.training.optimisers.lamb import Lamb
from lra.runners.training.optimisers.lion import Lion
from lra.runners.training.parallel.shards import is_sharded

Groups = list[dict[str, Any]]
ADAM = ("step", "exp_avg", "exp_avg_sq")


def build_optimiser(model: nn.Module, config: OptimConfig) -> torch.optim.Optimizer:
    """Return the optimiser that the options name, over groups of equal treatment.

    PyTorch's classes wherever it has the rule, fused where that works on CPU and GPU. How weight
    decay acts stands at each name of `lra.runners.training.optim.Optimiser`.
    """
    return MAKERS[config.optimiser](parameter_groups(model, config), config)


def set_rates(optimiser: torch.optim.Optimizer, rate: float, momentum: float | None = None) -> None:
    """Set the rate of every group to `rate` times its scale, and momentum if it is not None.

    Args:
        optimiser: Made by `build_optimiser`.
        rate: Of the schedule.
        momentum: In place of `momentum`, or of the first beta.
    """
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]
        if momentum is not None and "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        elif momentum is not None:
            group["momentum"] = momentum


def state_of(config: OptimConfig, parameter: Tensor) -> Mapping[str, Tensor]:
    """Return what the optimiser remembers of a parameter: names, shapes and types.

    Args:
        config: Which optimiser.
        parameter: That it has moved before.
    """
    names = REMEMBERED[config.optimiser]
    if config.optimiser is Optimiser.adafactor and parameter.dim() > 1:
        return {
            "step": torch.zeros(()),
            "row_var": parameter.detach()[..., :1],
            "col_var": parameter.detach()[..., :1, :],
        }
    return {name: torch.zeros(()) if name == "step" else parameter for name in names}


def _betas(config: OptimConfig) -> tuple[float, float]:
    return config.betas[0], config.betas[1]


def _adamw(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    rate = config.peak_learning_rate
    return torch.optim.AdamW(groups, lr=rate, betas=_betas(config), eps=config.epsilon, fused=True)


def _adam(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    rate = config.peak_learning_rate
    return torch.optim.Adam(groups, lr=rate, betas=_betas(config), eps=config.epsilon, fused=True)


def _radam(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.RAdam(
        groups,
        lr=config.peak_learning_rate,
        betas=_betas(config),
        eps=config.epsilon,
        decoupled_weight_decay=True,
    )


def _adagrad(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    if config.tensor_clip is not None:
        return ClippedAdagrad(
            groups,
            lr=config.peak_learning_rate,
            limit=config.tensor_clip,
            epsilon=config.epsilon,
            initial=config.initial_accumulator,
        )
    return torch.optim.Adagrad(
        groups,
        lr=config.peak_learning_rate,
        eps=config.epsilon,
        initial_accumulator_value=config.initial_accumulator,
    )


def _adafactor(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(
        groups,
        lr=config.peak_learning_rate,
        beta2_decay=config.beta2_decay,
        eps=(config.epsilon, config.least_scale),
        d=config.update_clip,
    )


def _sgd(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    shared_out = any(is_sharded(weight) for group in groups for weight in group["params"])
    return torch.optim.SGD(
        groups,
        lr=config.peak_learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
        fused=not shared_out,  # PyTorch has no fused rule for parts of weights
    )


def _lion(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return Lion(groups, lr=config.peak_learning_rate, betas=_betas(config))


def _lamb(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    rate = config.peak_learning_rate
    return Lamb(groups, lr=rate, betas=_betas(config), eps=config.epsilon)


MAKERS: Mapping[Optimiser, Callable[[Groups, OptimConfig], torch.optim.Optimizer]] = {
    Optimiser.adamw: _adamw,
    Optimiser.adam: _adam,
    Optimiser.adafactor: _adafactor,
    Optimiser.adagrad: _adagrad,
    Optimiser.radam: _radam,
    Optimiser.sgd: _sgd,
    Optimiser.lion: _lion,
    Optimiser.lamb: _lamb,
}
REMEMBERED: Mapping[Optimiser, tuple[str, ...]] = {
    Optimiser.adamw: ADAM,
    Optimiser.adam: ADAM,
    Optimiser.adafactor: ("step", "variance"),
    Optimiser.adagrad: ("step", "sum"),
    Optimiser.radam: ADAM,
    Optimiser.sgd: ("momentum_buffer",),
    Optimiser.lion: ("exp_avg",),
    Optimiser.lamb: ADAM,
}
"""What each optimiser keeps of a parameter; `adafactor` keeps a matrix otherwise: `state_of`."""

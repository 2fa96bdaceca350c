"""Builds the optimiser that the options name, and describes its state in a checkpoint."""

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
    """Return the optimiser that the options name, for all trainable parameters of a model.

    It is the class of PyTorch if there is one, fused if that works on CPU and GPU.
    `lra.runners.training.optim.Optimiser` says how weight decay works in each.
    """
    return MAKERS[config.optimiser](parameter_groups(model, config), config)


def set_rates(optimiser: torch.optim.Optimizer, rate: float, momentum: float | None = None) -> None:
    """Set the learning rate and the momentum of all parameters.

    Args:
        optimiser: An optimiser that `build_optimiser` returned.
        rate: Learning rate of the schedule; the `scale` of a group multiplies it.
        momentum: New value of the momentum, or of the first beta; None: it stays.
    """
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]
        if momentum is not None and "betas" in group:
            group["betas"] = (momentum, group["betas"][1])
        elif momentum is not None:
            group["momentum"] = momentum


def state_of(config: OptimConfig, parameter: Tensor) -> Mapping[str, Tensor]:
    """Return tensors with the names, shapes and types of the optimiser's state of a parameter.

    Args:
        config: The options, which name the optimiser.
        parameter: A parameter that the optimiser has updated before.
    """
    names = REMEMBERED[config.optimiser]
    if config.optimiser is Optimiser.adafactor and parameter.dim() > 1:
        # One number for each row and for each column, in place of one for each entry.
        return {
            "step": torch.zeros(()),
            "row_var": parameter.detach()[..., :1],
            "col_var": parameter.detach()[..., :1, :],
        }
    return {name: torch.zeros(()) if name == "step" else parameter for name in names}


def _betas(config: OptimConfig) -> tuple[float, float]:
    return config.betas[0], config.betas[1]


def _make_adamw(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    rate = config.peak_learning_rate
    return torch.optim.AdamW(groups, lr=rate, betas=_betas(config), eps=config.epsilon, fused=True)


def _make_adam(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    rate = config.peak_learning_rate
    return torch.optim.Adam(groups, lr=rate, betas=_betas(config), eps=config.epsilon, fused=True)


def _make_radam(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.RAdam(
        groups,
        lr=config.peak_learning_rate,
        betas=_betas(config),
        eps=config.epsilon,
        decoupled_weight_decay=True,
    )


def _make_adagrad(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
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


def _make_adafactor(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return torch.optim.Adafactor(
        groups,
        lr=config.peak_learning_rate,
        beta2_decay=config.beta2_decay,
        eps=(config.epsilon, config.least_scale),
        d=config.update_clip,
    )


def _make_sgd(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    sharded = any(is_sharded(weight) for group in groups for weight in group["params"])
    return torch.optim.SGD(
        groups,
        lr=config.peak_learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
        fused=not sharded,  # PyTorch has no fused SGD for sharded weights
    )


def _make_lion(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    return Lion(groups, lr=config.peak_learning_rate, betas=_betas(config))


def _make_lamb(groups: Groups, config: OptimConfig) -> torch.optim.Optimizer:
    rate = config.peak_learning_rate
    return Lamb(groups, lr=rate, betas=_betas(config), eps=config.epsilon)


MAKERS: Mapping[Optimiser, Callable[[Groups, OptimConfig], torch.optim.Optimizer]] = {
    Optimiser.adamw: _make_adamw,
    Optimiser.adam: _make_adam,
    Optimiser.adafactor: _make_adafactor,
    Optimiser.adagrad: _make_adagrad,
    Optimiser.radam: _make_radam,
    Optimiser.sgd: _make_sgd,
    Optimiser.lion: _make_lion,
    Optimiser.lamb: _make_lamb,
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
"""Names of each optimiser's state of a parameter; `state_of` has those of `adafactor` matrices."""

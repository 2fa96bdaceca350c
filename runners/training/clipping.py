"""Gradients made smaller before they move a weight. Nothing here waits for the device."""

from collections.abc import Mapping

from torch import nn

from runners.training.optim import OptimConfig
from runners.training.optimisers.groups import tunings


def clip_gradients(
    model: nn.Module, config: OptimConfig, own: Mapping[nn.Parameter, float]
) -> None:
    """Clip each parameter of special treatment by itself, then each entry, then the whole."""
    for parameter, limit in own.items():
        nn.utils.clip_grad_norm_([parameter], limit)
    if config.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), config.clip_value)
    if config.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), config.clip)


def own_clips(model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the parameters that are clipped by themselves, with their limits."""
    return {p: tuning.clip for p, tuning in tunings(model) if tuning.clip is not None}

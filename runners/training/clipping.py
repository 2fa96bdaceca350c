"""Gradients made smaller before they move a weight. Nothing here waits for the device."""

from collections.abc import Mapping

from torch import Tensor, nn

from runners.training.optim import OptimConfig
from runners.training.optimisers.groups import tunings
from runners.training.parallel.parted import joined_up


def clip_gradients(
    model: nn.Module, config: OptimConfig, own: Mapping[nn.Parameter, float], *, norm: bool = False
) -> Tensor | None:
    """Clip each parameter of special treatment by itself, then each entry, then the whole.

    Args:
        model: What is trained.
        config: Limits.
        own: Parameters with limits of their own.
        norm: Whether the norm is wanted where nothing clips by it.

    Returns:
        The Euclidean norm of all gradients before the last of these; None: nobody needed it.
    """
    for parameter, limit in own.items():
        nn.utils.clip_grad_norm_([parameter], limit)
    if config.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), config.clip_value)
    if config.clip is not None:
        return joined_up(nn.utils.clip_grad_norm_(model.parameters(), config.clip))
    if norm:
        return nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None)
    return None


def own_clips(model: nn.Module) -> dict[nn.Parameter, float]:
    """Return the parameters that are clipped by themselves, with their limits."""
    return {p: tuning.clip for p, tuning in tunings(model) if tuning.clip is not None}

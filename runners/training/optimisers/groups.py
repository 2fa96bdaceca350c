"""Parameters in groups of equal treatment."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from models.mixer import Tuned, Tuning
from models.positions import AxialPositions, LearnedPositions
from runners.training.optim import DecayedWeights, OptimConfig

EMBEDDINGS = (nn.Embedding, LearnedPositions, AxialPositions)
"""Modules whose parameters are rows that are looked up, not maps."""


def tunings(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tuning]]:
    """Yield every trainable parameter once, with its special treatment."""
    special: dict[int, Tuning] = {}
    for name, module in model.named_modules():
        own = dict(module.named_parameters())
        if isinstance(module, Tuned):
            for key, tuning in module.tuning().items():
                if key not in own:
                    raise ValueError(
                        f"{name or type(module).__name__}.tuning() names {key!r}, which is none "
                        f"of its parameters: {', '.join(sorted(own))}"
                    )
                special[id(own[key])] = tuning
    for parameter in model.parameters():
        if parameter.requires_grad:
            yield parameter, special.get(id(parameter), Tuning())


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Return groups for an optimiser; `scale` in a group multiplies the schedule.

    What a family says of a parameter's decay wins over `decayed_weights`.
    """
    left_alone = undecayed(model) if config.decayed_weights is DecayedWeights.matrices else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, tuning in tunings(model):
        decay = 0.0 if id(parameter) in left_alone else config.weight_decay
        if tuning.weight_decay is not None:
            decay = tuning.weight_decay
        groups.setdefault((tuning.learning_rate_scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (scale, decay), parameters in groups.items()
    ]


def undecayed(model: nn.Module) -> set[int]:
    """Return the ids of the parameters that `decayed_weights=matrices` leaves alone."""
    found = {id(parameter) for parameter in model.parameters() if parameter.dim() < 2}
    for module in model.modules():
        if isinstance(module, EMBEDDINGS):
            found |= {id(parameter) for parameter in module.parameters()}
    return found

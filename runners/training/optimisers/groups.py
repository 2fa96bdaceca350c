"""Parameters in groups of equal treatment."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from lra.models.tuning import Tuned, Tuning
from lra.runners.training.optim import DecayedWeights, OptimConfig


def tunings(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tuning]]:
    """Yield every trainable parameter once, with its special treatment.

    What a module says adds to what the modules around it say.
    """
    special: dict[int, Tuning] = {}
    for name, module in model.named_modules():
        parameters, treatments = dict(module.named_parameters()), dict[str, Tuning]()
        if isinstance(module, Tuned):
            treatments = {**module.tuning()}
        elif isinstance(module, nn.Embedding):  # PyTorch's table, which cannot say so
            treatments = {"weight": Tuning(matrix=False)}
        for key, tuning in treatments.items():
            if key not in parameters:
                raise ValueError(
                    f"{name or type(module).__name__}.tuning() names {key!r}, which is none "
                    f"of its parameters: {', '.join(sorted(parameters))}"
                )
            before, default = special.get(id(parameters[key]), Tuning()), Tuning()
            joined = (a if b == c else b for a, b, c in zip(before, tuning, default, strict=True))
            special[id(parameters[key])] = Tuning._make(joined)
    for parameter in model.parameters():
        if parameter.requires_grad:
            yield parameter, special.get(id(parameter), Tuning())


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Return groups for an optimiser; `scale` in a group multiplies the schedule.

    What a family says of a parameter's decay wins over `decayed_weights`.
    """
    everything = config.decayed_weights is DecayedWeights.all
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, tuning in tunings(model):
        decayed = everything or (tuning.matrix and parameter.dim() >= 2)
        decay = config.weight_decay if decayed else 0.0
        if tuning.weight_decay is not None:
            decay = tuning.weight_decay
        groups.setdefault((tuning.learning_rate_scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (scale, decay), parameters in groups.items()
    ]

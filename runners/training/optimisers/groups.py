"""Parameters in groups of equal treatment."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from lra.models.backbone.norms import ScaleNorm
from lra.models.tuning import TunedModule, Tuning
from lra.runners.training.optim import DecayedWeights, OptimConfig

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.GroupNorm, ScaleNorm)


def tunings(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tuning]]:
    """Yield every trainable parameter once, with its special treatment.

    What a module says adds to what the modules around it say.
    """
    special: dict[int, Tuning] = {}
    for name, module in model.named_modules():
        parameters, treatments = dict(module.named_parameters()), dict[str, Tuning]()
        if isinstance(module, TunedModule):
            treatments = {**module.tuning()}
        elif isinstance(module, nn.Embedding):  # PyTorch's table, which cannot say so
            treatments = {"weight": Tuning(matrix=False)}
        for key, tuning in treatments.items():
            if key not in parameters:
                raise ValueError(
                    f"{name or type(module).__name__}.tuning() names {key!r}, which is not a "
                    f"parameter of this module: {', '.join(sorted(parameters))}"
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
    which = config.decayed_weights
    spared = _biases_and_gains(model) if which is DecayedWeights.all_but_biases else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, tuning in tunings(model):
        matrix = tuning.matrix and parameter.dim() >= 2
        decayed = matrix if which is DecayedWeights.matrices else id(parameter) not in spared
        decay = config.weight_decay if decayed else 0.0
        if tuning.weight_decay is not None:
            decay = tuning.weight_decay
        groups.setdefault((tuning.learning_rate_scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (scale, decay), parameters in groups.items()
    ]


def _biases_and_gains(model: nn.Module) -> set[int]:
    """Return the ids of the biases and the parameters of norms within the stack of a model."""
    return {
        id(parameter)
        for place, module in model.named_modules() if "stack" in place.split(".")
        for name, parameter in module.named_parameters(recurse=False)
        if name == "bias" or isinstance(module, NORMS)
    }  # fmt: skip

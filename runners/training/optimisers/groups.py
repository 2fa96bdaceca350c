"""Parameters in groups with equal learning rate and weight decay."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from lra.models.backbone.norms import ScaleNorm
from lra.models.tuning import TunedModule, Tuning
from lra.runners.training.optim import DecayedWeights, OptimConfig

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.BatchNorm1d, nn.GroupNorm, ScaleNorm)


def tunings(model: nn.Module) -> Iterator[tuple[nn.Parameter, Tuning]]:
    """Yield every trainable parameter once, with the treatment that its modules ask for.

    If several modules ask for a treatment of a parameter, the inner module's values win.
    """
    special: dict[int, Tuning] = {}
    for name, module in model.named_modules():
        parameters, treatments = dict(module.named_parameters()), dict[str, Tuning]()
        if isinstance(module, TunedModule):
            treatments = {**module.tuning()}
        elif isinstance(module, nn.Embedding):  # a class of PyTorch, which has no `tuning`
            treatments = {"weight": Tuning(matrix=False)}
        for key, tuning in treatments.items():
            if key not in parameters:
                raise ValueError(
                    f"{name or type(module).__name__}.tuning() names {key!r}, but the parameters "
                    f"of this module are {', '.join(sorted(parameters))}"
                )
            outer, default = special.get(id(parameters[key]), Tuning()), Tuning()
            # Outer modules come first; a value of an inner one wins unless it is the default.
            joined = (a if b == c else b for a, b, c in zip(outer, tuning, default, strict=True))
            special[id(parameters[key])] = Tuning._make(joined)
    for parameter in model.parameters():
        if parameter.requires_grad:
            yield parameter, special.get(id(parameter), Tuning())


def parameter_groups(model: nn.Module, config: OptimConfig) -> list[dict[str, Any]]:
    """Return parameter groups for an optimiser, each with equal learning rate and weight decay.

    The `scale` of a group multiplies the learning rate. The decay that a family sets for a
    parameter wins over the option `decayed_weights`.
    """
    rule = config.decayed_weights
    undecayed = _find_biases_and_gains(model) if rule is DecayedWeights.all_but_biases else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter, tuning in tunings(model):
        is_matrix = tuning.matrix and parameter.dim() >= 2
        decayed = is_matrix if rule is DecayedWeights.matrices else id(parameter) not in undecayed
        decay = config.weight_decay if decayed else 0.0
        if tuning.weight_decay is not None:
            decay = tuning.weight_decay
        groups.setdefault((tuning.learning_rate_scale, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for (scale, decay), parameters in groups.items()
    ]


def _find_biases_and_gains(model: nn.Module) -> set[int]:
    """Return the ids of the biases and the parameters of norms within the stack of a model."""
    return {
        id(parameter)
        for place, module in model.named_modules() if "stack" in place.split(".")
        for name, parameter in module.named_parameters(recurse=False)
        if name == "bias" or isinstance(module, NORMS)
    }  # fmt: skip

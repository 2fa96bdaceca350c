"""Options of optimisation: what is refused; groups by special treatment; clipping."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from lra.models.mixer import Tuning
from lra.runners.training.optim import OptimConfig
from lra.runners.training.optimisers.build import build_optimiser, set_rates
from lra.runners.training.updates import clip_gradients, parameter_clips


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clip": 0.0}, "clip must be positive"),
        ({"betas": [0.9]}, "betas must be two numbers"),
        ({"micro_batch_size": 64}, "from 1 to batch_size=32: got 64"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        OptimConfig(**options)


class Special(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Parameter(torch.ones(3))
        self.plain = nn.Parameter(torch.ones(3))

    def tuning(self) -> Mapping[str, Tuning]:
        return {"slow": Tuning(learning_rate_scale=0.1, weight_decay=0.0, clip=0.5)}


def test_a_shared_module_is_tuned_and_counted_once() -> None:
    shared = Special()
    model = nn.ModuleList([shared, shared, nn.Linear(2, 2)])
    optimiser = build_optimiser(model, OptimConfig(weight_decay=0.3))
    set_rates(optimiser, 1.0)
    by_parameter = {
        id(p): (group["lr"], group["weight_decay"])
        for group in optimiser.param_groups
        for p in group["params"]
    }
    assert len(by_parameter) == 4
    assert by_parameter[id(shared.slow)] == (pytest.approx(0.1), 0.0)
    assert by_parameter[id(shared.plain)] == (1.0, 0.3)


def test_clipping_by_itself_and_as_a_whole() -> None:
    model = Special()
    for parameter in model.parameters():
        parameter.grad = torch.full((3,), 10.0)
    clip_gradients(model, OptimConfig(clip=1.0), parameter_clips(model))
    assert model.slow.grad is not None
    assert model.plain.grad is not None
    total = torch.cat([model.slow.grad, model.plain.grad]).norm()
    assert float(total) == pytest.approx(1.0, rel=1e-4)
    assert float(model.slow.grad.norm() / model.plain.grad.norm()) == pytest.approx(
        0.5 / (10 * math.sqrt(3)), rel=1e-4
    )


def test_a_tuning_for_no_parameter_is_an_error() -> None:
    class Wrong(nn.Linear):
        def tuning(self) -> Mapping[str, Tuning]:
            return {"wieght": Tuning()}

    with pytest.raises(
        ValueError, match="'wieght', but the parameters of this module are bias, weight"
    ):
        build_optimiser(Wrong(2, 2), OptimConfig())


NO_LIMIT = {
    "steps", "batch_size", "warmup_steps", "cycle_steps", "cycle_multiplier", "plateau_patience",
    "plateau_cooldown", "plateau_threshold", "peak_learning_rate", "epsilon", "weight_decay",
    "clip", "clip_value", "update_clip", "least_scale", "initial_accumulator", "power",
    "start_divisor", "end_divisor", "average_after",
}  # fmt: skip
"""Options that may be large."""
KINDS = {each.name: str(each.type) for each in dataclasses.fields(OptimConfig)}
WHOLE = {name for name, kind in KINDS.items() if "int" in kind}
FRACTIONS = {name for name, kind in KINDS.items() if "float" in kind and "list" not in kind}
WRONG = [
    *((name, -1) for name in sorted(WHOLE | FRACTIONS - {"beta2_decay"})),
    *((name, math.nan) for name in sorted(FRACTIONS)),
    *((name, 10**9) for name in sorted((WHOLE | FRACTIONS) - NO_LIMIT)),
]


@pytest.mark.parametrize(("option", "wrong"), WRONG)
def test_every_number_has_a_range(option: str, wrong: float) -> None:
    """Below it, above it, and no number at all: refused by name and value."""
    value = wrong if option in WHOLE else float(wrong)
    with pytest.raises(ValueError, match=rf"^{option} .*got {value}"):
        OptimConfig(**{option: value})

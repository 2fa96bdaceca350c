"""Schedules by their formulas; groups by special treatment."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from models.mixer import Tuning
from runners.training.clipping import clip_gradients, own_clips
from runners.training.optim import OptimConfig, Schedule
from runners.training.optimisers.build import build_optimiser, set_rates
from runners.training.schedules import learning_rate


def rates(**options: Any) -> list[float]:
    config = OptimConfig(**options)
    return [learning_rate(config, step) for step in range(config.steps)]


def test_cosine_warms_up_peaks_and_ends_at_its_fraction() -> None:
    found = rates(peak_learning_rate=2.0, steps=101, warmup_steps=10, final_fraction=0.05)
    assert found[:10] == pytest.approx([0.2 * i for i in range(1, 11)])
    assert max(found) == found[10] == 2.0
    assert found[55] == pytest.approx(2.0 * (0.05 + 0.95 * 0.5))
    assert found[-1] == pytest.approx(0.1)


def test_rsqrt_is_that_of_the_long_range_arena_code() -> None:
    config = OptimConfig(
        peak_learning_rate=0.05, schedule=Schedule.rsqrt, warmup_steps=1000, steps=5000
    )
    assert learning_rate(config, 0) == 0
    assert learning_rate(config, 500) == pytest.approx(0.05 * 0.5 / math.sqrt(1000))
    assert learning_rate(config, 1000) == pytest.approx(1.58e-3, rel=2e-3)
    assert learning_rate(config, 4000) == pytest.approx(0.05 / math.sqrt(4000))


def test_linear_and_constant() -> None:
    found = rates(peak_learning_rate=1.0, steps=11, schedule=Schedule.linear)
    assert found == pytest.approx([1 - i / 10 for i in range(11)])
    assert set(rates(peak_learning_rate=3.0, steps=4, schedule=Schedule.constant)) == {3.0}


def test_one_cycle_is_that_of_torch() -> None:
    found = rates(peak_learning_rate=1.0, steps=50, warmup_steps=10, schedule=Schedule.one_cycle)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 1.0, total_steps=50, pct_start=11 / 50, anneal_strategy="linear",
        cycle_momentum=False,
    )  # fmt: skip
    expected = []
    for _ in range(50):
        expected.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        theirs.step() if len(expected) < 50 else None
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps must be at least 1: got 0"),
        ({"warmup_steps": 9, "steps": 5}, "warmup_steps must not exceed steps"),
        ({"peak_learning_rate": -1.0}, "peak_learning_rate must be positive: got -1.0"),
        ({"clip": 0.0}, "clip must be positive"),
        ({"betas": [0.9]}, "betas are two numbers"),
        ({"micro_batch_size": 64}, "between 1 and batch_size=32: got 64"),
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
    clip_gradients(model, OptimConfig(clip=1.0), own_clips(model))
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

    with pytest.raises(ValueError, match="'wieght', which is none of its parameters: bias, weight"):
        build_optimiser(Wrong(2, 2), OptimConfig())

"""Schedules over whole runs: PyTorch's own where it has them, else their formulas."""

import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fuzz import cases
from torch.optim import lr_scheduler

from lra.composition.warm_up import FREE
from lra.runners.training.optim import OPEN_ENDED, OptimConfig, Schedule
from lra.runners.training.schedules import Plateau, learning_rate, momentum
from lra.runners.training.updates import WeightUpdates

PEAK, STEPS = 0.3, 61


def rates(**options: Any) -> list[float]:
    config = OptimConfig(**{"peak_learning_rate": PEAK, "steps": STEPS} | options)
    return [learning_rate(config, step) for step in range(config.steps)]


def torchs(make: Callable[[torch.optim.Optimizer], Any], steps: int = STEPS) -> list[float]:
    """Return the rate of each update as one of PyTorch's schedulers has it."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a scheduler in sequence: PyTorch's own call
        scheduler = make(optimiser)
        found = []
        for _ in range(steps):
            found.append(optimiser.param_groups[0]["lr"])
            optimiser.step()
            if len(found) < steps:
                scheduler.step()
    return found


def warmed(after: Callable[[torch.optim.Optimizer], Any], warmup: int) -> Callable[..., Any]:
    """Put PyTorch's linear warm-up before a scheduler."""

    def make(optimiser: torch.optim.Optimizer) -> Any:
        rise = lr_scheduler.LinearLR(optimiser, 1 / warmup, 1.0, warmup - 1)
        return lr_scheduler.SequentialLR(optimiser, [rise, after(optimiser)], [warmup])

    return make


LAST = STEPS - 1
FALLS: dict[str, tuple[dict[str, Any], Callable[[int], Callable[..., Any]]]] = {
    "constant": ({}, lambda n: lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    "linear": (
        {"final_fraction": 0.1},
        lambda n: lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, n),
    ),
    "cosine": (
        {"final_fraction": 0.1},
        lambda n: lambda o: lr_scheduler.CosineAnnealingLR(o, n, 0.1 * PEAK),
    ),
    "polynomial": ({"power": 2.5}, lambda n: lambda o: lr_scheduler.PolynomialLR(o, n, 2.5)),
    "cosine_restarts": (
        {"final_fraction": 0.1, "cycle_steps": 7, "cycle_multiplier": 2},
        lambda n: lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7, 2, 0.1 * PEAK),
    ),
}


@pytest.mark.parametrize("warmup", [0, 9])
@pytest.mark.parametrize("name", FALLS)
def test_a_schedule_of_torch(name: str, warmup: int) -> None:
    options, make = FALLS[name]
    theirs = make(LAST - warmup)
    found = rates(schedule=name, warmup_steps=warmup, **options)
    assert found == pytest.approx(torchs(warmed(theirs, warmup) if warmup else theirs))


def test_restarts_of_one_length() -> None:
    found = rates(schedule="cosine_restarts", cycle_steps=20)
    assert found == pytest.approx(
        torchs(lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 20, 1))
    )


def test_polynomial_ends_at_its_fraction() -> None:
    found = rates(schedule="polynomial", power=2.0, final_fraction=0.25, warmup_steps=0)
    assert found[30] == pytest.approx(PEAK * (0.25 + 0.75 * 0.25))
    assert found[-1] == pytest.approx(PEAK * 0.25)


def long_range_arena(factors: str, base: float, warmup: int, cycle: int, step: int) -> float:
    """The factors of that code, one by one."""
    rate = base
    for factor in factors.split(" * "):
        if factor == "linear_warmup":
            rate *= min(1.0, step / warmup)
        elif factor == "rsqrt_decay":
            rate /= math.sqrt(max(step, warmup))
        else:
            progress = max(0.0, (step - warmup) / float(cycle))
            rate *= max(0.0, 0.5 * (1.0 + math.cos(math.pi * (progress % 1.0))))
    return rate


@pytest.mark.parametrize(
    ("schedule", "factors", "cycle"),
    [
        ("rsqrt", "linear_warmup * rsqrt_decay", None),
        ("lra_cosine", "linear_warmup * cosine_decay", 17),
        ("lra_cosine", "linear_warmup * cosine_decay", 400),
    ],
)
def test_the_schedules_of_the_long_range_arena_code(
    schedule: str, factors: str, cycle: int | None
) -> None:
    found = rates(schedule=schedule, warmup_steps=13, cycle_steps=cycle)
    wanted = [long_range_arena(factors, PEAK, 13, cycle or 1, step) for step in range(STEPS)]
    assert found == pytest.approx(wanted, abs=1e-15)
    assert found[0] == 0


def test_inverse_sqrt_is_that_of_attention_is_all_you_need() -> None:
    width, warmup = 512, 20
    peak = (width * warmup) ** -0.5
    found = rates(schedule="inverse_sqrt", warmup_steps=warmup, peak_learning_rate=peak)
    paper = [width**-0.5 * min(u**-0.5, u * warmup**-1.5) for u in range(1, STEPS + 1)]
    assert found == pytest.approx(paper)
    assert max(found) == found[warmup - 1] == pytest.approx(peak)
    flat = rates(schedule="inverse_sqrt", warmup_steps=0)
    assert flat == pytest.approx([PEAK / math.sqrt(u) for u in range(1, STEPS + 1)])


@pytest.mark.parametrize("anneal", ["linear", "cos"])
@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_one_cycle_is_that_of_torch_with_the_momentum_of_the_optimiser(
    anneal: str, optimiser: str
) -> None:
    own = {"momentum": 0.5} if optimiser == "sgd" else {"betas": [0.5, 0.98]}
    config = OptimConfig(
        optimiser=optimiser, schedule="one_cycle", anneal=anneal, peak_learning_rate=PEAK,
        steps=STEPS, warmup_steps=12, start_divisor=10.0, end_divisor=100.0,
        momentum_range=[0.8, 0.97], **own,
    )  # fmt: skip
    updates = WeightUpdates(torch.nn.Linear(2, 2), config, half=False)
    parameter = torch.nn.Parameter(torch.zeros(1))
    theirs: torch.optim.Optimizer = torch.optim.SGD([parameter], lr=1.0, momentum=0.5)
    if optimiser == "adamw":
        theirs = torch.optim.AdamW([parameter], lr=1.0, betas=(0.5, 0.98))
    scheduler = lr_scheduler.OneCycleLR(
        theirs, PEAK, total_steps=STEPS, pct_start=13 / STEPS, anneal_strategy=anneal,
        base_momentum=0.8, max_momentum=0.97, div_factor=10.0, final_div_factor=100.0,
    )  # fmt: skip
    for step in range(STEPS):
        updates.begin(step)
        (ours,), (wanted,) = updates.optimiser.param_groups, theirs.param_groups
        assert ours["lr"] == pytest.approx(wanted["lr"])
        key = "momentum" if optimiser == "sgd" else "betas"
        assert ours[key] == pytest.approx(wanted[key])
        theirs.step()
        if step < STEPS - 1:
            scheduler.step()


def test_one_cycle_by_default_has_the_ends_of_torch_and_leaves_momentum_alone() -> None:
    options = {"steps": 50, "warmup_steps": 10, "schedule": "one_cycle"}
    found = rates(**options)
    assert found == pytest.approx(
        torchs(
            lambda o: lr_scheduler.OneCycleLR(
                o, PEAK, total_steps=50, pct_start=11 / 50, anneal_strategy="linear",
                cycle_momentum=False,
            ),
            50,
        )
    )  # fmt: skip
    assert momentum(OptimConfig(**options), 3) is None


@pytest.mark.fuzz
@pytest.mark.parametrize("mode", ["max", "min"])
def test_plateau_is_that_of_torch(mode: str) -> None:
    draw = random.Random(8)
    for _ in range(cases(10)):
        options = {
            "factor": draw.choice([0.1, 0.5]), "patience": draw.randint(0, 3),
            "threshold": draw.choice([0.0, 1e-4, 0.05]), "cooldown": draw.randint(0, 3),
        }  # fmt: skip
        least = draw.choice([0.0, 0.2])
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
        theirs = lr_scheduler.ReduceLROnPlateau(
            optimiser, mode, min_lr=least * PEAK, eps=0.0, **options
        )  # fmt: skip
        config = OptimConfig(
            schedule="plateau", peak_learning_rate=PEAK, plateau_least=least,
            **{f"plateau_{name}": value for name, value in options.items()},
        )  # fmt: skip
        ours = Plateau(config)
        for _ in range(40):
            score = round(draw.random(), 2) + 0.01
            theirs.step(score)
            ours.see(score if mode == "max" else -score)
            again = Plateau(config)  # a state, and what is made of it, are all there is
            again.restore(ours.state())
            ours = again
            rate = learning_rate(config, 5, ours.reduction)
            assert rate == pytest.approx(optimiser.param_groups[0]["lr"])


def test_plateau_warms_up_and_stays() -> None:
    found = rates(schedule="plateau", warmup_steps=4)
    assert found[:5] == pytest.approx([PEAK * i / 4 for i in (1, 2, 3, 4, 4)])
    assert set(found[4:]) == {PEAK}


@pytest.mark.fuzz
def test_no_schedule_exceeds_its_peak_or_falls_below_zero() -> None:
    draw = random.Random(3)
    for schedule in Schedule:
        for _ in range(cases(4)):
            steps = draw.randint(1, 40)
            warmup = draw.randint(0, steps)
            cycles = {"cycle_steps": draw.randint(1, 50)} if "cos" in schedule else {}
            cycles = {} if schedule is Schedule.cosine else cycles
            found = rates(schedule=schedule, steps=steps, warmup_steps=warmup, **cycles)
            assert all(math.isfinite(rate) and 0 <= rate <= PEAK * (1 + 1e-12) for rate in found)
            assert max(found) > 0 or steps in (1, warmup)


def test_the_command_line_cuts_the_warm_up_of_schedules_that_end() -> None:
    assert set(FREE) == {schedule.value for schedule in OPEN_ENDED}
    for schedule in Schedule:
        cycles = {"cycle_steps": 5} if schedule in ("cosine_restarts", "lra_cosine") else {}
        if schedule in OPEN_ENDED:
            OptimConfig(schedule=schedule, steps=5, warmup_steps=6, **cycles)
        else:
            with pytest.raises(ValueError, match="warmup_steps=6 must not exceed steps=5"):
                OptimConfig(schedule=schedule, steps=5, warmup_steps=6, **cycles)

"""Each optimiser beside the literal form of its paper; its options act, or are refused."""

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lra import conf
from lra.models.idle import format_value
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.optim import OptimConfig, Optimiser, Schedule
from lra.runners.training.optimisers.build import build_optimiser, set_rates, state_of
from lra.runners.training.schedules import learning_rate
from lra.runners.training.updates import WeightUpdates
from tests.runners.training.optimisers.literal_optimisers import RULES

FOLDER = Path(*conf.__path__)
SHARED = yaml.safe_load((FOLDER / "config.yaml").read_text())["optim"].keys()
OWN: dict[str, list[str]] = {
    file.stem: [
        option
        for option in yaml.safe_load(file.read_text())
        if option not in {"name", "about", "optimiser", "peak_learning_rate", *SHARED}
    ]
    for file in sorted((FOLDER / "optim").glob("*.yaml"))
}
"""The options of each optimiser, by its file."""
OF_SCHEDULES: dict[str, tuple[str, ...]] = {
    "cosine_restarts": ("cycle_steps", "cycle_multiplier"), "lra_cosine": ("cycle_steps",),
    "polynomial": ("power",),
    "one_cycle": ("anneal", "start_divisor", "end_divisor", "momentum_range"),
    "plateau": (
        "plateau_factor", "plateau_patience", "plateau_threshold", "plateau_cooldown",
        "plateau_least",
    ),
}  # fmt: skip
OTHER: dict[str, Any] = {
    "betas": [0.5, 0.6], "epsilon": 5.0, "momentum": 0.5, "nesterov": True,
    "initial_accumulator": 0.3, "tensor_clip": 0.2, "beta2_decay": -0.5, "update_clip": 1.5,
    "least_scale": 0.9,
    "cycle_steps": 4, "cycle_multiplier": 2, "power": 3.0, "anneal": "cos", "start_divisor": 3.0,
    "end_divisor": 5.0, "momentum_range": [0.1, 0.2], "plateau_factor": 0.5,
    "plateau_patience": 3, "plateau_threshold": 0.1, "plateau_cooldown": 2, "plateau_least": 0.5,
}  # fmt: skip
"""A value of each that is not its default, where half of that would tell nothing."""


def config_of(name: str, **options: Any) -> OptimConfig:
    """Return an optimiser's options as its file gives them, and others."""
    node = yaml.safe_load((FOLDER / "optim" / f"{name}.yaml").read_text())
    node = {key: value for key, value in node.items() if key not in ("name", "about")}
    return OptimConfig(**{**node, **options})


class Quadratic(nn.Module):
    """A convex bowl with parameters of 0 to 3 dimensions, whose lowest point is known."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.goals = [
            torch.randn(shape, generator=draw, dtype=torch.float64)
            for shape in ((), (4,), (3, 5), (2, 3, 2))
        ]
        self.goals[0].abs_()  # a single number that is scaled never changes its sign
        self.weights = nn.ParameterList(torch.full_like(goal, 0.5) for goal in self.goals)

    def forward(self) -> torch.Tensor:
        pairs = zip(self.weights, self.goals, strict=True)
        parts = [((i + 1) * (w - goal) ** 2).sum() for i, (w, goal) in enumerate(pairs)]
        return torch.stack(parts).sum()


def steps(config: OptimConfig, count: int) -> Quadratic:
    model = Quadratic()
    optimiser = build_optimiser(model, config)
    for step in range(count):
        set_rates(optimiser, learning_rate(config, step))
        torch.autograd.backward(model())
        optimiser.step()
        optimiser.zero_grad()
    return model


VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in OWN},
    "sgd nesterov": {"nesterov": True},
    "sgd plain": {"momentum": 0.0},
    "adagrad begun": {"initial_accumulator": 0.2},
    "adagrad clipped": {"tensor_clip": 5.0, "initial_accumulator": 0.1},
    "adafactor coarse": {"update_clip": 1.02, "least_scale": 2.0, "epsilon": 0.5},
    "radam soon": {"betas": [0.9, 0.5]},
}


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_twenty_steps_are_those_of_the_paper(variant: str, decay: float) -> None:
    name = variant.partition(" ")[0]
    config = config_of(
        name, weight_decay=decay, steps=20, schedule="linear", warmup_steps=4,
        peak_learning_rate=0.05, **VARIANTS[variant],
    )  # fmt: skip
    found = steps(config, 20)
    model = Quadratic()
    memories: list[dict[str, Any]] = [{} for _ in model.weights]
    weights = [weight.detach().numpy().copy() for weight in model.weights]
    for step in range(20):
        for i, goal in enumerate(model.goals):
            gradient = 2 * (i + 1) * (weights[i] - goal.numpy())
            rate = learning_rate(config, step)
            memories[i]["t"] = step + 1
            weights[i] = RULES[name](weights[i], gradient, rate, config, memories[i])
    for ours, wanted in zip(found.weights, weights, strict=True):
        torch.testing.assert_close(ours.detach(), torch.as_tensor(wanted), rtol=1e-7, atol=1e-9)


def test_a_weight_of_zeros_is_moved_by_lamb() -> None:
    weight = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(weight.weight)
    optimiser = build_optimiser(weight, config_of("lamb", peak_learning_rate=0.1))
    set_rates(optimiser, 0.1)
    weight.weight.grad = torch.tensor([[1.0, -2.0, 0.0]])
    optimiser.step()
    torch.testing.assert_close(weight.weight.detach(), torch.tensor([[-0.1, 0.1, 0.0]]))


@pytest.mark.parametrize("variant", [*OWN, "adagrad clipped"])
def test_a_state_goes_through_a_checkpoint(variant: str, tmp_path: Path) -> None:
    """Read without trust, it goes on to the bit, and it is what is checked before."""
    name = variant.partition(" ")[0]
    config = config_of(name, steps=9, warmup_steps=0, weight_decay=0.1, **VARIANTS[variant])
    models, optimisers = [Quadratic(), Quadratic()], []
    for model in models:
        optimisers.append(build_optimiser(model, config))

    def move(which: int, count: int) -> None:
        for _ in range(count):
            torch.autograd.backward(models[which]())
            optimisers[which].step()
            optimisers[which].zero_grad()

    move(0, 5)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"model": models[0].state_dict(), "optimiser": optimisers[0].state_dict()})
    ((_, state),) = checkpoints.states()
    models[1].load_state_dict(state["model"])
    optimisers[1].load_state_dict(state["optimiser"])
    for index, weight in enumerate(models[1].weights):
        kept = state["optimiser"]["state"][index]
        wanted = state_of(config, weight)
        assert {k: (v.shape, v.dtype) for k, v in kept.items()} == {
            k: (v.shape, v.dtype) for k, v in wanted.items()
        }
    move(0, 4)
    move(1, 4)
    for one, other in zip(models[0].weights, models[1].weights, strict=True):
        assert torch.equal(one, other)


def test_nesterov_momentum_is_fairseqs_nag() -> None:
    """Its buffer is this one's times the rate, which it corrects where the rate moves."""
    weights = torch.linspace(-1, 1, 5, dtype=torch.float64)
    rates = [0.1, 0.3, 0.2, 0.05]
    config = OptimConfig(optimiser=Optimiser.sgd, momentum=0.99, nesterov=True)
    model = nn.ParameterList([weights.clone()])
    optimiser = build_optimiser(model, config)
    buffer, old = torch.zeros_like(weights), rates[0]
    for rate in rates:
        set_rates(optimiser, rate)
        model[0].grad = 2 * model[0].detach() + 1
        optimiser.step()
        gradient, change = 2 * weights + 1, rate / old
        weights = weights + 0.99**2 * change * buffer - (1 + 0.99) * rate * gradient
        buffer, old = 0.99 * change * buffer - rate * gradient, rate
        torch.testing.assert_close(model[0].detach(), weights, rtol=0, atol=1e-14)


class Reads(TorchDispatchMode):
    """Counts tensors that become numbers: of those on a device, each waits for it."""

    def __init__(self, free: set[int]) -> None:
        super().__init__()
        self.free, self.count = free, 0

    def __torch_dispatch__(self, call, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "_local_scalar_dense" in str(call) or "is_nonzero" in str(call):
            self.count += id(args[0]) not in self.free
        return call(*args, **(kwargs or {}))


@pytest.mark.parametrize("variant", [*OWN, "adagrad clipped"])
def test_an_update_waits_for_no_device(variant: str) -> None:
    """But for PyTorch's Adafactor, and its two numbers of each parameter."""
    model, name = Quadratic(), variant.partition(" ")[0]
    config = config_of(
        name, steps=99, ema_decay=0.9, clip=1.0, clip_value=0.5, weight_decay=0.1,
        **VARIANTS[variant],
    )  # fmt: skip
    updates = WeightUpdates(model, config, half=False)
    for step in range(8):
        updates.begin(step)
        updates.backward(model())
        counts = {id(kept.get("step")) for kept in updates.optimiser.state.values()}
        with Reads(counts) as reads:
            updates.apply()
            assert updates.average is not None
            updates.average.update()
        if step:  # the first one makes the counts
            assert reads.count == (2 * len(model.weights) if name == "adafactor" else 0)


def test_every_optimiser_has_a_file_with_its_own_options_and_a_source() -> None:
    assert set(OWN) == {optimiser.value for optimiser in Optimiser} == set(RULES)
    shared = yaml.safe_load((FOLDER / "config.yaml").read_text())["optim"]
    fields = {each.name for each in dataclasses.fields(OptimConfig)}
    for name, own in OWN.items():
        node = yaml.safe_load((FOLDER / "optim" / f"{name}.yaml").read_text())
        assert node["name"] == node["optimiser"] == name
        assert node["about"].get("paper") or node["about"].get("source")
        config_of(name)
        mine = set(node) - {"name", "about"}
        if name == "adamw":  # which also returns a run to the plain defaults
            assert {key: node[key] for key in mine & set(shared)} == {
                key: shared[key] for key in mine & set(shared)
            }
            mine -= set(shared)
        assert mine == {"optimiser", "peak_learning_rate", *own}
        assert fields == mine | set(shared) | {option for each in OWN.values() for option in each}


def usual(option: str) -> Any:
    return getattr(OptimConfig(), option)


def other(option: str) -> Any:
    return OTHER[option] if option in OTHER else usual(option) / 2


def refused(option: str, value: Any, others: dict[str, Any], owners: list[str]) -> None:
    """Assert that an option is refused with key, value, and both ways out."""
    with pytest.raises(ValueError, match=f"^{option} has no effect") as caught:
        OptimConfig(**others, **{option: value})
    text = str(caught.value)
    assert f"got {format_value(value)}" in text
    assert f"leave it at {format_value(usual(option))}" in text
    ways = text.rpartition("or choose ")[2]
    assert all(owner in ways for owner in owners), text


@pytest.mark.parametrize("option", dict.fromkeys(o for own in OWN.values() for o in own))
@pytest.mark.parametrize("name", OWN)
def test_an_option_acts_or_is_refused(name: str, option: str) -> None:
    """For all optimisers and all options that some of them have."""
    value = other(option)
    assert value != usual(option)
    if option not in OWN[name]:
        owners = [owner for owner, own in OWN.items() if option in own]
        refused(option, value, {"optimiser": name}, owners)
        return
    more = {"momentum": 0.9} if option == "nesterov" else {}
    plain = {"optimiser": name, "peak_learning_rate": 0.1, **more}
    if option == "nesterov":
        refused(option, value, {"optimiser": name}, ["sgd with momentum above 0"])
    before, after = (steps(OptimConfig(**plain, **given), 8) for given in ({}, {option: value}))
    pairs = zip(before.weights, after.weights, strict=True)
    assert any(not torch.equal(one, moved) for one, moved in pairs)


@pytest.mark.parametrize("option", dict.fromkeys(o for own in OF_SCHEDULES.values() for o in own))
@pytest.mark.parametrize("schedule", list(Schedule))
def test_an_option_of_a_schedule_acts_or_is_refused(schedule: Schedule, option: str) -> None:
    needed = {"cycle_steps": 6} if schedule in ("cosine_restarts", "lra_cosine") else {}
    owners = [other for other, own in OF_SCHEDULES.items() if option in own]
    if schedule not in owners:
        refused(option, OTHER[option], {"schedule": schedule, **needed}, owners)
        return
    config = OptimConfig(**{"schedule": schedule, **needed, option: OTHER[option]})
    assert format_value(getattr(config, option)) == format_value(OTHER[option])


@pytest.mark.parametrize("name", OWN)
def test_momentum_is_moved_where_there_is_some(name: str) -> None:
    options = {"optimiser": name, "schedule": "one_cycle"}
    if not {"betas", "momentum"} & set(OWN[name]):
        refused("momentum_range", [0.1, 0.2], options, ["adamw", "sgd"])
        return
    OptimConfig(**options, momentum_range=[0.1, 0.2])


@pytest.mark.parametrize(
    ("option", "value", "needed"),
    [
        ("decayed_weights", "matrices", {"weight_decay": 0.1}),
        ("ema_warmup", True, {"ema_decay": 0.9}),
    ],
)
def test_an_option_that_needs_another(option: str, value: Any, needed: dict[str, Any]) -> None:
    (other,) = needed
    refused(option, value, {}, [other])
    OptimConfig(**needed, **{option: value})


@pytest.mark.parametrize("schedule", ["cosine_restarts", "lra_cosine"])
def test_cycles_need_their_length(schedule: str) -> None:
    with pytest.raises(
        ValueError, match=r"but it is null; type optim\.cycle_steps=90 for one cycle"
    ):
        OptimConfig(schedule=schedule, steps=100, warmup_steps=10)


def test_values_to_try_are_of_their_types() -> None:
    for option, value in OTHER.items():
        kind = type(usual(option))
        assert isinstance(value, kind) or usual(option) is None or issubclass(kind, StrEnum)

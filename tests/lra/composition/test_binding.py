"""Typing keeps a value what it is, or refuses it; numbers that no run can use are refused."""

import math
from dataclasses import dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

import pytest

from lra.composition.binding import bind, make
from lra.composition.run import Control, Logger
from lra.errors import ConfigError
from lra.models.backbone.model import BackboneConfig
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.timing import Timing
from lra.runners.measures.scaling import Scaling
from lra.runners.measures.span import Span
from lra.runners.training.config import TrainConfig
from lra.runners.training.optim import OptimConfig


class Colour(StrEnum):
    red = auto()


@dataclass(kw_only=True)
class Inner:
    depth: int = 1


@dataclass(kw_only=True)
class Paint:
    coats: int = 1
    share: float = 1.0
    limit: float | None = None
    wet: bool = False
    name: str = "x"
    colour: Colour = Colour.red
    sizes: list[int] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)
    names: list[list[str]] = field(default_factory=list)
    anything: Any = None
    inner: Inner | None = None
    place: Path | None = None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("coats", 1.7), ("coats", 1.0), ("coats", True), ("coats", "3"), ("share", True),
        ("share", "0.5"), ("share", 2**60 + 1), ("limit", "1"), ("wet", 1), ("wet", "true"),
        ("wet", "yes"), ("wet", 0), ("name", 3), ("name", 1.5), ("name", True), ("colour", 0),
        ("sizes", [1.5]), ("sizes", ["1"]), ("sizes", [True]), ("rates", {"a": "1"}),
        ("names", [[1]]), ("names", [["a", []]]), ("names", ["a"]),
        ("sizes", [[1]]), ("sizes", [{}]), ("sizes", [None]), ("rates", {"a": []}),
        ("rates", {"a": {"b": 1.0}}), ("coats", None), ("coats", 10**30), ("share", 10**400),
        ("sizes", "${a}"), ("rates", "${a}"), ("name", "???"), ("names", [["???"]]), ("sizes", {}),
        ("colour", "RED"), ("colour", "${a}"), ("rates", []), ("inner", {"depth": "1"}),
        ("inner", {"deep": 1}), ("inner", 3), ("place", "x"),
    ],
)  # fmt: skip
def test_a_value_that_would_become_another_is_refused(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"house.{key}|Inner"):
        bind(Paint, {key: value}, "house")


def test_a_value_that_nothing_gives_is_named() -> None:
    def paint(*, coats: int, rates: list[float] | None) -> None: ...

    with pytest.raises(ConfigError, match=r"house\.coats is missing; wanted a whole number"):
        bind(paint, {}, "house")
    with pytest.raises(ConfigError, match=r"rates is missing; wanted a list of numbers, or null"):
        bind(paint, {"coats": 3}, "house")


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_that_are_not_finite_are_refused_wherever_they_stand(number: float) -> None:
    for node in (
        {"share": number},
        {"limit": number},
        {"rates": {"a": number}},
        {"anything": number},
        {"anything": [{"b": [1, number]}]},
    ):
        with pytest.raises(ConfigError, match=r"house\.\w+.*wanted a finite number"):
            bind(Paint, node, "house")


def test_a_default_that_is_not_finite_is_refused_too() -> None:
    def paint(*, limit: float = math.inf) -> None: ...

    with pytest.raises(ConfigError, match=r"house\.limit: got inf.*null"):
        bind(paint, {}, "house")


def test_what_fits_stays_what_it_is() -> None:
    node = {
        "coats": 2, "share": 3, "limit": None, "wet": True, "name": "3", "colour": "red",
        "sizes": [1, 2], "rates": {"a": 1}, "names": [["a"], []], "anything": {"x": [None, 1.5]},
    }  # fmt: skip
    bound = bind(Paint, node, "house")
    assert bound == {**node, "inner": None, "place": None}
    assert bind(Paint, {"inner": {"depth": 2}}, "house")["inner"] == Inner(depth=2)
    assert bind(Paint, {"name": "a\\${b}"}, "house")["name"] == "a\\${b}"
    assert type(bound["share"]) is type(bound["rates"]["a"]) is float
    assert bind(Paint, {"wet": False}, "house")["wet"] is False  # not what {"wet": 0} would be


@pytest.mark.parametrize(
    ("target", "node", "named"),
    [
        (Control, {"timeout_s": -1}, "timeout_s: got -1"),
        (Control, {"sweep_timeout_s": 0}, "sweep_timeout_s: got 0"),
        (Control, {"timeout_s": 1e30}, "timeout_s: got 1e"),
        (Control, {"retry": ["nope"]}, "unknown status 'nope'"),
        (Control, {"retry": ["timeut"]}, "did you mean 'timeout'"),
        (Control, {"shard": "3/2"}, "wanted i/n"),
        (Control, {"shard": "9" * 5000 + "/1"}, "wanted i/n"),
        (Logger, {"mode": "nope", "project": "x"}, "mode"),
        (Logger, {"mode": "offline", "project": 3}, "project"),
        (Logger, {"mode": "offline", "project": " "}, "project"),
        (Logger, {"mode": "offline", "project": "x", "entity": ""}, "entity"),
        (HardwareProfile, {"name": "x", "training_threads": -1}, "training_threads: got -1"),
        (HardwareProfile, {"name": "x", "training_threads": 0}, "training_threads: got 0"),
        (HardwareProfile, {"name": "x", "training_threads": 10**9}, "training_threads"),
        (HardwareProfile, {"name": "x", "threads": -1}, "threads"),
        (HardwareProfile, {"name": "x", "training_processes": -1}, "training_processes"),
        (HardwareProfile, {"name": "x", "processes": 0}, "processes: got 0"),
        (HardwareProfile, {"name": "x", "sharded": True}, "sharded: got true with processes=1"),
        (HardwareProfile, {"name": "x", "memory_limit_bytes": -1}, "memory_limit_bytes"),
        (HardwareProfile, {"name": "x", "memory_limit_bytes": 0}, "memory_limit_bytes"),
        (HardwareProfile, {"name": "x", "token_budget": 0}, "token_budget"),
        (HardwareProfile, {"name": "x", "peak_flops_per_second": 0}, "peak_flops_per_second"),
        (HardwareProfile, {"name": 3}, "name"),
        (OptimConfig, {"weight_decay": -1}, "weight_decay"),
        (OptimConfig, {"steps": 10**20}, "steps"),
        (BackboneConfig, {"head_hidden_width": 0}, "head_hidden_width"),
        (BackboneConfig, {"softmax_cutoffs": [3, 2]}, "softmax_cutoffs"),
        (BackboneConfig, {"softmax_shrink": 0}, "softmax_shrink"),
        (Timing, {"long_step_s": 0}, "long_step_s"),
        (Scaling, {"step_limit_s": -1}, "step_limit_s"),
        (Scaling, {"batch": "fixed", "batch_size": 0}, "batch_size"),
        (Scaling, {"reference_max_length": {"sdpa": 0}}, "reference_max_length.sdpa"),
        (Span, {"keeps": 0}, "keeps"),
        (TrainConfig, {"checkpoint_every_s": 0}, "checkpoint_every_s"),
    ],
)
def test_values_that_no_run_can_use_are_refused(target: Any, node: Any, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(target, node, "group")
    assert named in str(caught.value)

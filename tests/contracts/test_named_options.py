"""Every option that is a choice, of every constructor that a YAML offers, takes names of choices.

Each refuses what is no name, so each converts; what is converted becomes a member. Found by
introspection of conf/*, so that a new family, task or runner is covered by being there.
"""

import functools
import os
import subprocess
import sys
from enum import StrEnum, auto
from pathlib import Path
from typing import get_type_hints

import pytest
import torch
from torch import nn

from lra.composition.binding import schema
from lra.conf.choices import ByName, by_name
from lra.models.backbone.model import Backbone, BackboneConfig, TaskFacts
from lra.models.mixer import Site, Traits, Variant
from lra.models.multi_head import MultiHead
from tests.contracts.choices_of_configs import (
    CONFIGS,
    MODELS,
    NEEDED,
    OPTIONS,
    choices_of,
    named,
    refuse_unknown_names,
)  # fmt: skip


def site():
    return Site(width=16, heads=2, max_length=24)


def test_there_are_choices():
    assert len(OPTIONS) > 70
    assert {target for target, *_ in OPTIONS} > {*CONFIGS} - {
        config for config in CONFIGS if not choices_of(config)
    }


def test_configs_take_names_as_well():
    file = Path(__file__).with_name("choices_of_configs.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", file],
        cwd=file.parents[2],
        env=os.environ | {"LRA_SHAPES": "0", "LRA_FUZZ": "2"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    count = sum(len(kind) + 1 for target, _, kind, _ in OPTIONS if target in CONFIGS)
    assert int(done.stdout.split()[-4]) >= count


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=named(case)) for case in OPTIONS if case[0] not in CONFIGS]
)
def test_an_unknown_name_is_refused_with_the_choices(case):
    refuse_unknown_names(case, *((site(),) if case[0] in MODELS.values() else ()))


class Pace(StrEnum):
    slow = auto()
    fast = auto()


class Foreign(nn.Module):
    """A mixer of somebody else's, which knows nothing of choices but its annotations."""

    def __init__(self, site, *, pace: Pace = Pace.slow, steps: int = 1) -> None:
        super().__init__()
        self.pace, self.steps, self.traits = pace, steps, Traits()

    def forward(self, x, layout):
        return x * (self.steps + (self.pace is Pace.fast))


def test_a_class_of_somebody_elses_gets_its_choices_from_the_model():
    def mixer(**options):
        frame = BackboneConfig(depth=1, width=8, feed_forward_width=8)
        parts = [functools.partial(Foreign, **options)]
        return Backbone(frame, TaskFacts(**NEEDED[TaskFacts]), parts, seed=0).stack.blocks[0].mixer

    assert mixer(pace="fast").pace is Pace.fast
    with pytest.raises(ValueError, match="pace: got 'fats'; wanted one of slow, fast; did you"):
        mixer(pace="fats")
    with pytest.raises(ValueError, match="steps: got '2'; wanted a whole number"):
        mixer(steps="2")


def test_subclasses_and_decorated_functions_take_names():
    class Mine(MultiHead):
        def __init__(self, site, *, pace: Pace | None = None) -> None:
            super().__init__(site, torch.nn.Identity())
            self.pace = pace

    class Other(ByName):
        def __init__(self, *, paces: list[Pace]) -> None:
            self.paces = paces

    @by_name
    def run(x, *, pace: Pace = Pace.slow, scale: float = 1.0, **rest):
        return x, pace, scale, rest

    assert Other(paces=("slow", Pace.fast)).paces == [Pace.slow, Pace.fast]
    assert isinstance(Other(paces=["slow"]).paces[0], Pace)
    with pytest.raises(ValueError, match="paces: got 'slow'; wanted a list"):
        Other(paces="slow")
    with pytest.raises(ValueError, match=r"paces\[1\]: got 'slo'; wanted one of slow, fast"):
        Other(paces=["slow", "slo"])
    assert run(1, pace="fast", scale=2, more=3) == (1, Pace.fast, 2.0, {"more": 3})
    assert get_type_hints(run)["pace"] is Pace


@pytest.mark.parametrize("family", [*dict.fromkeys(MODELS.values())], ids=lambda f: f.__name__)
def test_a_number_or_a_switch_of_another_type_is_refused(family):
    wrong = {bool: (1, "true", None), int: (True, 1.5, "2"), float: (True, "0.1")}
    for name, (kind, _) in schema(family).items():
        for value in wrong.get(kind, ()):
            with pytest.raises(ValueError, match=rf"^{name}: got .*; wanted "):
                family(site(), **{name: value})


def test_the_schema_still_reads_the_constructor():
    assert schema(MODELS["linear"])["variant"] == (Variant, Variant.faithful)

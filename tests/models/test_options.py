"""Options that are annotated attributes of a family's class."""

import inspect
from enum import StrEnum, auto
from typing import ClassVar

import pytest
from torch import nn

from lra.composition.binding import defaults
from lra.composition.option_types import class_options
from lra.models.mixer import Count, Family, Need, Positive, Share, Site, Unsupported, Whole, options


class Kind(StrEnum):
    plain = auto()
    twice = auto()


@options
class Frame(Family):
    bias: bool = False
    """Whether there is one."""
    made: ClassVar[int] = 0
    needs = (Need("rate", kind=Kind.twice),)


class Between(Frame):
    """A frame of its own, whose attributes are no options."""

    held: int = 3


@options
class Small(Between):
    """A family.

    Args:
        least: Told in the docstring.
    """

    features: Count | None = 4
    """Channels."""
    least: Whole = 0
    rate: Positive = 1.0
    share: Share = 0.0
    kind: Kind = Kind.plain
    bias: bool = True

    def build(self, site: Site) -> None:
        self.map = nn.Linear(site.width, self.features or site.width)


SITE = Site(width=6, heads=2, max_length=8)
NAMES = ["bias", "features", "least", "rate", "share", "kind"]


def test_the_constructor_is_the_schema() -> None:
    signature = inspect.signature(Small)
    assert [*signature.parameters] == ["site", *NAMES]
    assert {each.kind for each in [*signature.parameters.values()][1:]} == {
        inspect.Parameter.KEYWORD_ONLY
    }
    assert dict(defaults(Small)) == {
        "bias": True, "features": 4, "least": 0, "rate": 1.0, "share": 0.0, "kind": "plain",
    }  # fmt: skip
    read = class_options(Small)
    assert [*read] == NAMES
    assert (read["features"].type, read["features"].meaning) == (
        "whole number, or null",
        "Channels.",
    )
    assert read["least"].meaning == "Told in the docstring."
    assert read["bias"].meaning == "Whether there is one."


def test_options_are_attributes_when_it_is_built() -> None:
    mixer = Small(SITE, features=3, kind="twice", rate=2)
    assert (mixer.features, mixer.kind, mixer.rate, mixer.bias) == (3, Kind.twice, 2.0, True)
    assert mixer.map.out_features == 3
    assert Small(SITE, features=None).map.out_features == 6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": 0}, "features must be at least 1, or null: got 0"),
        ({"features": "4"}, "features: got '4'; wanted a whole number"),
        ({"least": -1}, "least must be at least 0: got -1"),
        ({"rate": 0}, "rate must be positive: got 0.0"),
        ({"rate": float("nan")}, "rate must be positive: got nan"),
        ({"share": 1}, r"share must lie in \[0, 1\): got 1.0"),
        ({"kind": "twce"}, "kind: got 'twce'; wanted one of plain, twice; did you mean twice"),
    ],
)
def test_what_is_out_of_its_bound_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Small(SITE, **given)


def test_what_is_no_option_is_refused() -> None:
    with pytest.raises(TypeError, match="Small has no option 'held': it has "):
        Small(SITE, held=1)
    with pytest.raises(Unsupported, match=r"rate has no effect under kind=plain: got 2\.0"):
        Small(SITE, rate=2)


def test_a_constructor_of_its_own_stands() -> None:
    class Own(Small):
        def __init__(self, site: Site, *, width: int = 2) -> None:
            super().__init__(site, features=width)

    assert [*inspect.signature(Own).parameters] == ["site", "width"]
    assert Own(SITE, width=5).map.out_features == 5

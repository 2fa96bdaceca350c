"""docs/masks.md, docs/positions.md: families stand where their traits say, each encoding once."""

import re
from pathlib import Path
from typing import Any

import pytest

from lra.choices.traits import describe_traits
from lra.composition.catalogue import choices
from lra.composition.yaml_text import load
from lra.models.mixer import INSIDE, MASKS, Positions

DOCS = Path(__file__).parents[1] / "docs"
ORDER = [
    Positions.none, Positions.learned, Positions.sinusoidal, Positions.axial, Positions.rotary,
    Positions.alibi, Positions.t5, Positions.shaw, Positions.transformer_xl,
    Positions.position_infused,
]  # fmt: skip
"""As the page has them: those of the input first."""


def test_every_encoding_has_a_line() -> None:
    assert set(ORDER) == set(Positions)
    page = (DOCS / "positions.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE) == [p.value for p in ORDER]


@pytest.mark.parametrize(
    ("name", "trait", "places"),
    [("masks.md", "supports", MASKS), ("positions.md", "positions", INSIDE)],
)
def test_families_stand_where_their_traits_say(name: str, trait: str, places: Any) -> None:
    page = (DOCS / name).read_text()
    traits = {file.stem: describe_traits(load(file))[trait] for file in choices("model", [])}
    for place in places:
        (line,) = re.findall(rf"^- `{place}`: (.*)$", page, re.MULTILINE)
        wanted = sorted(family for family, offered in traits.items() if place in offered)
        assert line == ", ".join(wanted), f"docs/{name}, {place}: make pages writes it anew"

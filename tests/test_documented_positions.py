"""docs/positions.md: every encoding has its line, and families stand where their traits say."""

import re
from pathlib import Path

from lra.choices.traits import describe
from lra.composition.catalogue import choices
from lra.composition.yaml_text import load
from lra.models.mixer import INSIDE, Positions

PAGE = (Path(__file__).parents[1] / "docs" / "positions.md").read_text()


ORDER = [
    Positions.none, Positions.learned, Positions.sinusoidal, Positions.axial, Positions.rotary,
    Positions.alibi, Positions.t5, Positions.shaw, Positions.transformer_xl,
    Positions.position_infused,
]  # fmt: skip
"""As the page has them: those of the input first."""


def test_every_encoding_has_a_line() -> None:
    assert set(ORDER) == set(Positions)
    assert re.findall(r"^\| `(\w+)` \| ", PAGE, re.MULTILINE) == [p.value for p in ORDER]


def test_families_stand_where_their_traits_say() -> None:
    traits = {file.stem: describe(load(file))["positions"] for file in choices("model", [])}
    for positions in INSIDE:
        (line,) = re.findall(rf"^- `{positions}`: (.*)$", PAGE, re.MULTILINE)
        wanted = sorted(name for name, offered in traits.items() if positions in offered)
        assert line == ", ".join(wanted), f"docs/positions.md, {positions}"

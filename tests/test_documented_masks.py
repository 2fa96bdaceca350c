"""docs/masks.md: families stand where their traits say."""

import re
from pathlib import Path

from lra.choices.traits import describe
from lra.composition.catalogue import choices
from lra.composition.yaml_text import load
from lra.models.mixer import MASKS

PAGE = (Path(__file__).parents[1] / "docs" / "masks.md").read_text()


def test_families_stand_where_their_traits_say() -> None:
    traits = {file.stem: describe(load(file))["supports"] for file in choices("model", [])}
    for mask in MASKS:
        (line,) = re.findall(rf"^- `{mask}`: (.*)$", PAGE, re.MULTILINE)
        wanted = sorted(name for name, supported in traits.items() if mask in supported)
        assert line == ", ".join(wanted), f"docs/masks.md, {mask}"

"""The table of families whose sequences processes can share, against what they say."""

import re
from pathlib import Path

from lra.composition.compose import mixer_factory
from lra.models.contract import Case
from lra.models.mixer import Unsupported
from tests.contracts.test_mixers import FAMILIES, MODELS

PAGE = Path(__file__).parents[2] / "docs" / "parallel.md"
DIRECTIONS = {(False, True): "both", (False,): "both sides", (True,): "causal"}


def directions(family: str) -> tuple[bool, ...]:
    """Return where a family says that ranks can share its sequences; True is causal."""
    factory, _ = mixer_factory(MODELS[family]["mixer"], ())
    found = []
    for causal in (False, True):
        try:
            mixer = Case(make=factory, causal=causal).build()
        except Unsupported:
            continue
        if "context" in mixer.traits.supports:
            found.append(causal)
    return tuple(found)


def test_the_page_names_the_families_that_share_sequences():
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    said = {
        name: cells[2].strip()
        for line in lines
        for cells in [line.strip("| ").split(" | ")]
        if len(cells) > 2  # another table has two columns
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    found = {family: DIRECTIONS[claims] for family in FAMILIES if (claims := directions(family))}
    assert said == found
    assert len(found) >= 12

"""What layers begin as: every parameter as in released code, by our convention, or for a reason.

`released.py` has stored the laws of released layers, as their models' initialisers leave them. Our
convention: maps of tokens are drawn Xavier-uniform, biases are zeros, gains ones.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.models.initial_values.laws import PLACES, differences, draws, law_of
from tests.models.initial_values.ours import DIFFERENT, FAMILIES, UNSTORED, built

STORED = json.loads(Path(__file__).with_name("released.json").read_text())


VARIED = {name.partition(" ")[0] for name in STORED}
NAMES = sorted({*STORED, *FAMILIES} - (VARIED - {*STORED}))
"""Every family, by its stored layers where there are some."""


def conventional(values: Tensor) -> bool:
    """Say whether draws are those of our convention."""
    if float(values.std()) == 0:
        return float(values.flatten()[0]) in {0.0, 1.0}
    bound = math.sqrt(6 / sum(values.shape[-2:]))
    most, deviation = float(values.abs().max()), float(values.std())
    return values.ndim > 2 and most < 1.0001 * bound and abs(deviation / bound * 3**0.5 - 1) < 0.02


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("name", "index"),
    [(name, index) for name in NAMES for index in (range(len(PLACES)) if name in STORED else [1])],
)
def test_parameters_begin_as_in_released_code_or_for_a_reason(name: str, index: int) -> None:
    laws = STORED[name][index] if name in STORED else {}
    ours = draws(lambda: dict(built(name, PLACES[index]).named_parameters()))
    assert laws.keys() <= ours.keys()
    said = {each: differences(ours[each], laws[each]) for each in laws}
    different = {each for each in laws if said[each]}
    assert different == laws.keys() & DIFFERENT.get(name, {}).keys(), said
    rest = {each for each in ours.keys() - laws.keys() if not conventional(ours[each])}
    reasons = UNSTORED.get(name, {}).keys()
    assert rest == reasons, "not by our convention: UNSTORED of ours.py needs the reason of each"


@pytest.mark.parametrize("factor", [1.1, 1 / 1.1])
@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
@pytest.mark.parametrize("shape", [(500, 8), (32, 64, 4)])
def test_another_deviation_is_seen(
    draw: Callable[..., Tensor], shape: tuple[int, ...], factor: float
) -> None:
    torch.manual_seed(1)
    law = law_of(draw(shape, dtype=torch.float64))
    again = draw(shape, dtype=torch.float64)
    assert not differences(again, law)
    assert differences(factor * again, law)


def test_what_moments_hide_is_seen() -> None:
    torch.manual_seed(1)
    wide = torch.randn(32, 64, 64, dtype=torch.float64)
    orthogonal = torch.linalg.qr(wide).Q * 8
    uniform = (torch.rand_like(wide) - 0.5) * 12**0.5
    turned = torch.tensor([1.0, -1.0]).repeat(32).double()
    assert differences(orthogonal, law_of(wide))
    assert differences(uniform, law_of(wide))
    assert differences(wide * 0.02 + turned, law_of(wide * 0.04 + turned))
    assert differences(wide * 0.02 + turned, law_of(wide * 0.02 - turned))

"""The contract kit against generated faults: random places, strengths, rows and factors."""

import random

import pytest
import torch
from torch import Tensor

from lra.models.contract import CHECKS, Case
from lra.models.mixer import Layout
from tests.fuzz import cases
from tests.models.contract.spoilt_mixers import Honest, KernelCore, with_core
from tests.models.contract.spoilt_numbers import glimpsing, scaled

pytestmark = pytest.mark.fuzz
LONGEST = 128


def drawn(number: int) -> list[random.Random]:
    """One source of randomness for each case, the same in every run."""
    return [random.Random(1_000 + each) for each in range(cases(number))]


def found(check: str, make: object, *, causal: bool = False) -> bool:
    case = Case(make=make, causal=causal, max_length=LONGEST, width=16)  # type: ignore[arg-type]
    passed, detail, _ = CHECKS[check](case)
    assert not detail.startswith("not applicable")
    return not passed


def strength(source: random.Random, least: float) -> float:
    """Between 1 and 10^-least, evenly in its logarithm, of either sign."""
    return source.choice([-1, 1]) * 10 ** -source.uniform(0, least)


@pytest.mark.parametrize("source", drawn(4), ids=lambda _: "")
def test_a_glimpse_of_a_later_token_is_found_wherever_it_is(source):
    token = source.randrange(LONGEST - 1)
    ahead = source.randrange(1, LONGEST - token)
    make = glimpsing(token, ahead, strength=strength(source, 8), once=source.random() < 0.5)
    assert found("no_lookahead", make, causal=True), (token, ahead)


@pytest.mark.share(3)
@pytest.mark.parametrize("source", drawn(3), ids=lambda _: "")
@pytest.mark.parametrize("below", [False, True])
def test_a_gradient_times_another_factor_is_found(source, below):
    factor = 1 + (-1 if below else 1) * 10 ** -source.uniform(0, 4)
    assert found("gradients", scaled(factor)), factor


@pytest.mark.parametrize("source", drawn(3), ids=lambda _: "")
def test_a_leak_between_two_rows_is_found(source):
    here, there = source.sample(range(7), 2)
    share = strength(source, 8)

    class Mixing(Honest):
        def forward(self, x: Tensor, layout: Layout) -> Tensor:
            y = super().forward(x, layout)
            if len(x) > max(here, there):
                y = y + share * (torch.arange(len(x)) == here)[:, None, None] * x[there]
            return y

    assert found("batch", Mixing), (here, there, share)


@pytest.mark.parametrize("source", drawn(3), ids=lambda _: "")
@pytest.mark.parametrize("causal", [False, True])
def test_a_leak_from_padding_is_found(source, causal):
    share = abs(strength(source, 7))

    class Leaking(KernelCore):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
            o = super().forward(q, k, v, layout)
            if layout.keep is None:
                return o
            padding = (v * ~layout.keep[:, None, :, None]).cumsum(2)
            return o + share * (padding if causal else padding[:, :, -1:])

    assert found("padding", with_core(Leaking), causal=causal), share


@pytest.mark.parametrize("source", drawn(3), ids=lambda _: "")
def test_heads_in_another_order_are_found(source):
    order = [0, 1, 2, 3]
    while order == sorted(order):
        source.shuffle(order)

    class Reordered(KernelCore):
        def forward(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
            parts = [q, k, v]
            if v.shape[1] == len(order):
                parts[chosen] = parts[chosen][:, order]
            return super().forward(*parts, layout)

    chosen = source.randrange(3)
    assert found("heads", with_core(Reordered)), (order, chosen)


@pytest.mark.parametrize("source", drawn(2), ids=lambda _: "")
def test_work_of_all_pairs_is_found_however_few_they_are(source):
    one_in = source.randrange(1, 6)

    class Aside(Honest):
        def __init__(self, site) -> None:
            super().__init__(site)
            self.traits = type(self.traits)(supports=frozenset(), causal=site.causal)

        def forward(self, x: Tensor, layout: Layout) -> Tensor:
            y = self.out_proj(self.v_proj(x))
            with torch.no_grad():
                some = x[:, ::one_in, 0]
                far = (some[:, :, None] - some[:, None]).abs().amax((1, 2))
            return y + 1e-3 * far[:, None, None]

    assert found("operations", Aside), one_in

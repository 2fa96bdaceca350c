"""Adapters of flash-linear-attention, with slow forms of the same arguments in its place."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lra.models.kernels.comparison import difference
from lra.models.kernels.providers import WITHOUT, all_kernels
from tests.models.kernels import literal_fla
from tests.models.kernels.fla_cases import CASES, Draws, check_equal, in_place

KINDS = [
    pytest.param(name, mask, state, id=f"{name}-{mask}-{'state' if state else 'start'}")
    for name, case in CASES.items()
    for mask in case.masks
    for state in (True, False)
    if case.states or not state
]
SQUARE = Draws(batch=1, heads=8, length=8, key=8, value=8, slots=8)
"""All sizes are alike, so that a fault of the layout gives no error of shapes."""


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "mask", "state"), KINDS)
def test_an_adapter_returns_what_our_form_returns(name: str, mask: str, state: bool) -> None:
    case = CASES[name]
    check_equal(case, getattr(literal_fla, case.function), Draws(mask=mask, with_state=state))


@pytest.mark.parametrize("name", CASES)
def test_an_adapter_agrees_in_half_precision(name: str) -> None:
    case, draws = CASES[name], Draws(torch.bfloat16, with_state=CASES[name].states)
    check_equal(case, getattr(literal_fla, case.function), draws)


@pytest.mark.share(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_the_comparison_accepts_a_right_kernel(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    kernel = in_place(case.kernel, getattr(literal_fla, case.function))
    draws = Draws(dtype, "right", CASES[name].states, length=70)
    assert difference(kernel, case.own, case.arguments(draws)) == ""


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_takes_the_calls_of_its_kind(name: str) -> None:
    case = CASES[name]
    refusal = case.kernel.takes(**case.arguments(Draws(with_state=case.states)))
    assert (not refusal) == case.takes
    if case.function == "chunk_dplr_delta_rule":
        assert case.kernel.takes(**case.arguments(Draws(torch.bfloat16))) == ""
        assert refusal == "it has bfloat16 and float16 only"


Call = dict[str, Any]
ROWS = ("q", "k", "v", "g", "beta", "p", "a", "b", "gk", "s", "level_scales")
STATES = ("initial_state", "h_kk_init", "h_kv_init")


def turned(x: Any) -> Any:
    """Return a state, or the states of a tuple, transposed."""
    if isinstance(x, tuple):
        return tuple(turned(part) for part in x)
    return None if x is None else x.mT


def with_sign(function: Callable[..., Any], call: Call) -> Any:
    return function(**{**call, "v": -call["v"]})


def with_growth(function: Callable[..., Any], call: Call) -> Any:
    gate = "gk" if "gk" in call else "g"
    return function(**{**call, gate: -call[gate]})


def with_scale(function: Callable[..., Any], call: Call) -> Any:
    return function(**{**call, "q": call["q"] * call["q"].shape[-1] ** -0.5})


def with_layout(function: Callable[..., Any], call: Call) -> Any:
    rows = {name: call[name].transpose(1, 2) for name in ROWS if call.get(name) is not None}
    o, *rest = function(**{**call, **rows})
    return o.transpose(1, 2), *rest


def with_order(function: Callable[..., Any], call: Call) -> Any:
    return function(**call, late=True)


def with_state(function: Callable[..., Any], call: Call) -> Any:
    states = {name: turned(call[name]) for name in STATES if call.get(name) is not None}
    o, *rest = function(**{**call, **states})
    return o, *turned(tuple(rest))


FAULTS = (with_sign, with_growth, with_scale, with_layout, with_order, with_state)
WITHOUT_GATES = (with_sign, with_scale, with_layout, with_state)
PLANTED = {
    "head": FAULTS,
    "constant": (with_sign, with_scale, with_state),
    "head before": FAULTS,
    "channel": FAULTS,
    "channel before": FAULTS,
    "delta head": FAULTS,
    "delta channel": FAULTS,
    "early": FAULTS,
    "general head": FAULTS,
    "general channel": FAULTS,
    "general early": FAULTS,
    "additions": FAULTS,
    "feature sums": WITHOUT_GATES,
    "positive": (with_growth, with_layout, with_order),  # a mean hides signs and scales
    "levels": FAULTS[:-1],
    "slots": FAULTS,
    "least squares": FAULTS,
}


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, faults in PLANTED.items() for fault in faults]
)
def test_a_wrong_kernel_is_refused(name: str, fault: Callable[..., Any]) -> None:
    case = CASES[name]
    function = getattr(literal_fla, case.function)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        call = inspect.signature(function).bind(*args, **kwargs).arguments
        return fault(function, call.pop("options", {}) | call)

    values = 7 if name == "feature sums" else 8  # and a column of ones
    arguments = case.arguments(replace(SQUARE, value=values, with_state=case.states))
    found = difference(in_place(case.kernel, wrong), case.own, arguments)
    assert "differs by" in found, found
    assert "allowed" in found


REFUSED = [
    ("head", {"dtype": torch.float64}, "it has no float64"),
    ("head", {"value": 300}, "heads of width 300 are wider than 256"),
    (
        "head",
        {"dtype": torch.bfloat16, "value": 5},
        "in half precision it has even widths of heads only, not 5",
    ),
    ("slots", {"slots": 257}, "slots of width 257 are wider than 256"),
    ("features", {"key": 258}, "heads of width 258 are wider than 256"),
    ("levels", {}, "keys must have a multiple of 64 channels, not 8"),
    ("levels", {"key": 64}, "values must have a power of two of channels, not 6"),
    ("levels", {"length": 129}, "it needs 9 levels for 129 tokens, not 8"),
    (
        "levels",
        {"length": 2**17},
        "131072 tokens are too long for it, which takes fewer than 131072",
    ),
]


@pytest.mark.parametrize(("name", "sizes", "reason"), REFUSED)
def test_a_refused_call_has_a_reason(name: str, sizes: dict[str, Any], reason: str) -> None:
    draws = replace(Draws(batch=1, heads=1, with_state=False), **sizes)
    assert CASES[name].kernel.takes(**CASES[name].arguments(draws)) == reason


def test_kernels_of_one_operation_divide_its_calls() -> None:
    """A call that one of them takes, the others refuse with the kind of call that they are for."""
    for name, other in (("head", "channel"), ("delta head", "delta channel")):
        arguments = [CASES[each].arguments(Draws()) for each in (name, other)]
        kernels = [CASES[each].kernel for each in (name, other)]
        assert kernels[0].takes(**arguments[1]) == "it is for decays of a head"
        assert kernels[1].takes(**arguments[0]) == "it is for decays of every channel"
    reason = CASES["delta head"].kernel.takes(**CASES["general head"].arguments(Draws()))
    assert reason == "it writes by beta k, and reads by k after the decay"
    reason = CASES["early"].kernel.takes(**CASES["delta head"].arguments(Draws()))
    assert reason == "it is for tokens that read before a decay of the head and write by one key"
    positive = CASES["positive"].arguments(Draws())
    plain = CASES["features"].arguments(Draws())
    reason = CASES["positive"].kernel.takes(**positive | {"memory": plain["memory"]})
    assert reason == "sums of earlier exponentials have a level for each feature"


def test_what_has_no_kernel_is_named_with_a_reason() -> None:
    assert not set(WITHOUT) & set(all_kernels())
    assert all(reason and not reason.endswith(".") for reason in WITHOUT.values())

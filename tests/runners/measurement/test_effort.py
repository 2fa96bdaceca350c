"""From calls to kinds of work, from work to time, and from two small passes to a large one."""

from dataclasses import asdict, replace

import pytest

from lra.models.contract.trace import CAUSAL, Operator
from lra.runners.measurement.effort import LARGE_BYTES, Effort, effort, extrapolate_calls, seconds
from lra.runners.measurement.rates import Rates

RATES = Rates(
    products=10.0, memory=2.0, cache=4.0, exponentials=5.0, sorts=8.0, operator_s=0.5
)  # fmt: skip
ONES = Effort(*[1.0] * 7)


def test_each_call_is_one_kind_of_work():
    large = LARGE_BYTES + 1
    calls = {
        Operator("mm", 100, 8): 2,
        Operator("add", 0, 4): 3,
        Operator("add", 0, large): 1,
        Operator("argmax", 0, 2): 1,  # goes through memory once, as a sum does
        Operator("exp", 0, 6): 1,
        Operator("sort", 0, 5): 1,
        Operator(f"attention{CAUSAL}", 60, 0): 2,
    }
    assert effort(calls, views=7) == Effort(320, large, 16 + 12 + 2, 6, 5, 60, 11 + 7)


def test_a_cpu_does_one_after_the_other_and_a_gpu_works_behind_the_program():
    work = Effort(30, 4, 8, 5, 8, 10, 3)  # a kernel skips 10 of the 30
    assert seconds(work, RATES, ahead=False, weights=ONES) == 2 + 2 + 2 + 1 + 1 + 1.5
    assert seconds(work, RATES, ahead=True, weights=ONES) == 8
    many = work._replace(operators=100)
    assert seconds(many, RATES, ahead=True, weights=ONES) == 50
    heavy = ONES._replace(products=3.0)
    assert seconds(work, RATES, ahead=False, weights=heavy) == 9.5 + 4


def test_whole_tensors_grow_and_pieces_become_more():
    near = {Operator("add", 0, 10): 4, Operator("mul", 0, 100): 2, Operator("cos", 0, 7): 1}
    far = {Operator("add", 0, 10): 8, Operator("mul", 0, 200): 2, Operator("cos", 0, 7): 1}
    assert extrapolate_calls(near, far, 0) == near
    assert extrapolate_calls(near, far, 1) == far
    assert extrapolate_calls(near, far, 3) == {
        Operator("add", 0, 10): 16,
        Operator("mul", 0, 400): 2,
        Operator("cos", 0, 7): 1,
    }


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), 1, None, "3"])
def test_rates_that_no_machine_has_are_refused(value):
    for name in asdict(RATES):
        with pytest.raises(ValueError, match=name):
            replace(RATES, **{name: value})

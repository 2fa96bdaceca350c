"""The least time of a pass, by operations and by bytes."""

import pytest

from lra.reports.statistics.speed_of_light import least_time

RUN = {
    "flops": 8e9, "flops_per_second": 4e9, "utilisation": 0.25, "bandwidth": 1e9,
    "parameters": 1e8, "saved_bytes": 1e9,
}  # fmt: skip


def test_the_longer_of_two_times_is_the_least():
    forward, step = (least_time(mode, [RUN]) for mode in ("forward", "step"))
    assert forward.operations_s == step.operations_s == 8e9 / 16e9
    assert forward.bytes_s == 4e8 / 1e9  # parameters are read once
    assert step.bytes_s == (3 * 4e8 + 2 * 1e9) / 1e9
    assert (forward.seconds, forward.limit) == (0.5, "operations")
    assert (step.seconds, step.limit) == (3.2, "memory")


def test_runs_give_their_median():
    runs = [RUN | {"flops": factor * 8e9} for factor in (1, 2, 9)]
    assert least_time("forward", runs).operations_s == 1.0


@pytest.mark.parametrize("lost", RUN)
def test_rows_without_a_number_have_none(lost):
    left = {name: value for name, value in RUN.items() if name != lost}
    assert least_time("step", [RUN, left]) is None
    assert least_time("step", []) is None
    assert least_time("step", [RUN | {"utilisation": 0.0}]) is None

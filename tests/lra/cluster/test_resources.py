"""Classes of workers by what cells need."""

import random

from lra.cluster.engine import Resources, WorkerGroup
from lra.cluster.growth import held_forecast
from lra.cluster.resources import MOST_CLASSES, time_of, with_clock, worker_groups
from lra.sweep.forecast import Forecast

GIB = 2**30


def cell(gib: float | None = None, *, gpus: int = 0, seconds: float | None = 60.0) -> Resources:
    memory = None if gib is None else int(gib * GIB)
    return Resources(gpus=gpus, memory_bytes=memory, seconds=seconds)


def test_large_cells_have_large_workers_and_most_workers_go_where_most_is_to_do() -> None:
    needs = [*[cell(1)] * 90, *[cell(40, seconds=120.0)] * 10]
    small, large = worker_groups(needs, 20)
    assert (small.name, small.resources.memory_bytes) == ("1cpu-1gib", GIB)
    assert (large.name, large.resources.memory_bytes) == ("1cpu-40gib", 40 * GIB)
    assert small.count + large.count == 20
    assert small.count == 16  # 5,400 of 6,600 s
    assert [group.count for group in worker_groups(needs, 1)] == [1]
    assert worker_groups([cell(1)] * 3, 20)[0].count == 3


def test_cells_that_read_the_clock_have_workers_of_their_own() -> None:
    cells = [*[(cell(1), False)] * 5, *[(cell(1, seconds=30.0), True)] * 5]
    others, clock = with_clock(cells, 3)
    assert [(g.name, g.timed, g.count) for g in (others, clock)] == [
        ("1cpu-1gib", False, 2),
        ("1cpu-1gib-clock", True, 1),
    ]
    (both,) = with_clock(cells, 1)
    assert both.timed
    (alone,) = with_clock(cells[5:], 3)
    assert (alone.timed, alone.count) == (True, 3)


def test_the_memory_of_a_gpu_is_none_of_the_machine() -> None:
    (group,) = worker_groups([cell(60, gpus=1), cell(2, gpus=1)], 4)
    assert (group.name, group.resources.memory_bytes) == ("1gpu-1cpu", None)


def test_every_cell_fits_a_worker_whatever_the_mixture() -> None:
    draw = random.Random(0)
    for workers in (1, 2, 3, 50):
        needs = [
            cell(
                draw.choice([None, 0.5, 3, 9, 70, 300]),
                gpus=draw.choice([0, 0, 1, 8]),
                seconds=draw.choice([None, 5.0, 9000.0]),
            )
            for _ in range(40)
        ]
        groups = worker_groups(needs, workers)
        assert len(groups) <= min(MOST_CLASSES, workers)
        assert sum(group.count for group in groups) == min(workers, 40)
        for each in needs:
            assert any(group.resources.hold(each) for group in groups)


def test_time_limits_stay_within_what_is_allowed() -> None:
    assert time_of(None, None, None) == 24 * 3600
    assert time_of(9000.0, None, None) == 18_000
    assert time_of(60.0, None, None) == 3600
    assert time_of(9000.0, None, 7200.0) == 7200
    assert time_of(60.0, None, 120.0) == 120
    assert time_of(9000.0, 0.5, 7200.0) == 1800


def test_the_next_stage_of_a_search_is_for_the_workers_that_are_there() -> None:
    """They were sized by its first: under SLURM they left what took longer, and ended."""
    sizes = [Resources(memory_bytes=2**30, seconds=2.0), Resources(memory_bytes=2**29, seconds=3.0)]
    groups = [WorkerGroup(name="some", count=1, resources=size) for size in sizes]
    guess = Forecast(seconds=9.0, need_bytes=2**31, reference_need_bytes=2**32)
    later = held_forecast(guess, groups)
    assert (later.seconds, later.whole_bytes) == (3.0, 2**30)
    unknown = Forecast()
    assert held_forecast(unknown, groups) == unknown
    groups.append(WorkerGroup(name="any", count=1, resources=Resources()))
    assert held_forecast(guess, groups) == guess

"""Who gets which place of a machine, and that nobody waits for ever."""

import os
import random

import device_jobs as jobs
import pytest

from lra.runners.isolation.isolate import Job, pool
from lra.runners.isolation.places import DevicePlace, Places, core_places, place_facts, seats, words
from lra.runners.records import Status

CARDS = [DevicePlace(gpu=str(number), identity=f"uuid-{number}") for number in range(4)]


def simulated(places: Places, waiting: dict[int, int], seed: int) -> list[tuple[int, int]]:
    """Run jobs that end in random order; return width and the number of ends before each start.

    Args:
        places: of the machine.
        waiting: how many jobs there are of each width.
        seed: of the order.
    """
    draw, running, ends, started = random.Random(seed), [], 0, []
    waiting = dict(waiting)
    while waiting or running:
        while (width := places.next(waiting)) is not None:
            taken = places.take(width)
            assert len(taken) == width
            assert len({place.gpu for place in taken}) == width  # a job has no device twice
            running.append(taken)
            used = [place for each in running for place in each]
            assert all(used.count(place) <= places.all.count(place) for place in used)
            started.append((width, ends))
            waiting[width] -= 1
            if not waiting[width]:
                del waiting[width]
        assert running  # while something waits, something runs
        places.give_back(running.pop(draw.randrange(len(running))))
        ends += 1
    return started


@pytest.mark.parametrize("seed", range(5))
def test_every_job_runs_once_and_no_place_is_taken_twice(seed):
    places = Places([*CARDS, *CARDS])  # two jobs may share a card
    started = simulated(places, {4: 3, 3: 4, 2: 5, 1: 9}, seed)
    assert sorted(width for width, _ in started) == sorted([4] * 3 + [3] * 4 + [2] * 5 + [1] * 9)


def test_a_wide_job_waits_for_those_that_run_and_for_no_other():
    places = Places(CARDS)
    running = [places.take(places.next({1: 9})) for _ in range(4)]
    places.give_back(running[3])
    assert places.next({3: 1, 1: 9}) == 1  # beside the three that are set aside
    running[3] = places.take(1)
    for ended in (1, 0):
        places.give_back(running[ended])
        assert places.next({3: 1, 1: 9}) is None  # kept free, however many narrow ones wait
    places.give_back(running[2])
    assert places.next({3: 1, 1: 9}) == 3
    assert [place.gpu for place in places.take(3)] == ["0", "1", "2"]


def test_what_a_wide_job_leaves_over_is_used_beside_it():
    places = Places([*CARDS, DevicePlace(gpu="4"), DevicePlace(gpu="5")])
    first = places.take(places.next({4: 2, 1: 2}))
    narrow = [places.take(places.next({4: 1, 1: 2})) for _ in range(2)]
    assert [each[0].gpu for each in narrow] == ["4", "5"]
    places.give_back(first)
    assert places.next({4: 1, 1: 2}) == 4


def test_what_is_timed_runs_alone_however_many_places_there_are():
    places = Places(CARDS, alone=True)
    taken = places.take(places.next({2: 1, 1: 1}))
    assert places.next({1: 1}) is None
    places.give_back(taken)
    assert places.next({1: 1}) == 1


def test_places_in_words():
    assert words(CARDS[:1]) == "GPU 0"
    assert words(CARDS[1:3]) == "GPUs 1, 2"
    assert words(core_places([4, 5, 6, 9], 2)) == "cores 4-6, 9"
    assert words(seats(2)) == ""
    assert place_facts(CARDS[:2]) == {"gpus": "0 (uuid-0), 1 (uuid-1)"}
    assert place_facts(core_places([4, 5, 6], 1)) == {"cores": "4-6"}
    assert place_facts(seats(2)) == {}


def test_processes_see_their_own_devices_and_keep_to_their_own_cores():
    cores = sorted(os.sched_getaffinity(0))
    own = [DevicePlace(gpu=str(7 - n), cores=(cores[-1 if n else 0],)) for n in range(2)]
    seen, started, endings = [], [], []
    pool(
        {
            2: [Job(function=jobs.devices, argument=None, name="both", processes=2)],
            1: [Job(function=jobs.devices, argument=None, name="one")],
        },
        places=Places(own),
        on_start=lambda job, taken: started.append((job.name, words(taken))),
        on_message=lambda job, message: seen.append((job.name, message)),
        on_end=lambda _, ending: endings.append(ending.status),
    )
    assert started == [("both", "GPUs 7, 6"), ("one", "GPU 7")]
    ranks = [["7,6", [cores[0]]], ["7,6", [cores[-1]]]]
    assert seen == [("both", ranks), ("one", [["7", [cores[0]]]])]
    assert endings == [Status.ok] * 2

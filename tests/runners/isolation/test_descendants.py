"""Whatever a cell has started ends with it, also what left its process group."""

import math
import os
import subprocess
import sys
from multiprocessing.connection import wait

import isolated_jobs as jobs
import pytest
from isolated import done, is_gone

from lra.runners.isolation import descendants
from lra.runners.isolation.isolate import Job, pool, start
from lra.runners.isolation.places import Places, seats
from lra.runners.records import Status

FLIGHTS = [jobs.flee_as_a_program, jobs.flee_as_a_fork, jobs.flee_as_a_daemon]


@pytest.mark.parametrize(
    ("flight", "how"),
    [*((flight, "die") for flight in FLIGHTS), (FLIGHTS[0], "exit"), (FLIGHTS[1], "raise"),
     (FLIGHTS[2], "return")],
)  # fmt: skip
def test_what_fled_the_group_ends_with_a_cell_that_ends_by_itself(flight, how):
    (pid,), ending = done(flight, how)
    ways = {"return": Status.ok, "die": Status.skipped}  # by SIGKILL: stopped from outside
    assert ending.status is ways.get(how, Status.crashed)
    assert is_gone(pid)


@pytest.mark.parametrize("flight", [*FLIGHTS, jobs.flee_without_a_mark])
def test_what_fled_the_group_ends_with_a_cell_that_is_killed(flight):
    child = start(Job(function=flight, argument="hang", seconds=600.0))
    pids = []
    while not pids:
        wait(child.waitables())
        pids += child.poll()
    if flight is FLIGHTS[2]:  # which is not below it any more when its time is over
        child._begun = -math.inf
        while child.ending is None:
            wait(child.waitables(), 0.01)
            child.poll()
        assert child.ending.status is Status.timeout
    child.kill()
    assert is_gone(pids[0])


def test_the_cells_beside_it_and_our_own_processes_live_on():
    own = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    endings = {}
    work = [
        Job(function=jobs.flee_as_a_program, argument="die", name="fled"),
        Job(function=jobs.random_work, argument=1, name="beside"),
        Job(function=jobs.flee_as_a_fork, argument="return", name="third"),
    ]
    pool(
        work,
        places=Places(seats(3)),
        on_message=lambda *_: None,
        on_end=lambda job, ending: endings.update({job.name: ending.status}),
    )
    assert endings == {"fled": Status.skipped, "beside": Status.ok, "third": Status.ok}
    assert own.poll() is None
    own.communicate(b"\n")


def test_a_killed_parent_takes_what_fled_with_it(tmp_path):
    from test_isolate_signals import write_parent

    path = write_parent(tmp_path / "parent.py", "flee_as_a_program", "hang")
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        word, pid = parent.stdout.readline().split()
        assert word == "message"
        parent.kill()
    assert is_gone(int(pid))


def test_nothing_is_found_that_is_not_there():
    assert descendants.marked_processes("of nobody") == set()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as own:
        assert own.pid in descendants.processes_below(os.getpid())
        assert descendants.processes_below(own.pid) == set()
        own.communicate(b"\n")
    assert own.pid not in descendants.processes_below(os.getpid())

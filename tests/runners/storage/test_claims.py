import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra.runners.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "results")


def test_a_claim_is_held_by_one_and_given_back(store):
    claim = store.claim("k")
    assert claim is not None
    assert store.claim("k") is None
    other = store.claim("other")
    assert other is not None
    with claim, other:
        held = json.loads((store.root / "claims" / "k").read_text())
        assert (held["host"], held["pid"]) == (socket.gethostname(), os.getpid())
    assert list((store.root / "claims").iterdir()) == []
    claim.release()  # harmless
    again = store.claim("k")
    assert again is not None
    again.release()


def dead_pid():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def write_claim(store, host, pid, age_s=0.0):
    path = store.root / "claims" / "k"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": host, "pid": pid}))
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


@pytest.mark.parametrize(
    ("host", "alive", "age_s", "free"),
    [
        ("elsewhere", True, 0, False),  # may well be alive: nobody here can tell
        ("elsewhere", True, 299, False),
        ("elsewhere", True, 301, True),
        (socket.gethostname(), True, 0, False),
        (socket.gethostname(), True, 301, True),  # alive, and no sign of it: another process
        (socket.gethostname(), False, 0, True),
    ],
)
def test_when_a_claim_counts_as_left_behind(store, host, alive, age_s, free):
    write_claim(store, host, os.getpid() if alive else dead_pid(), age_s)
    claim = store.claim("k")
    assert (claim is not None) == free
    if claim is not None:
        claim.release()


@pytest.mark.parametrize(
    ("host", "alive", "age_s", "gone"),
    [("elsewhere", True, 0, False), ("elsewhere", True, 301, True),
     (socket.gethostname(), True, 0, False), (socket.gethostname(), False, 0, True)],
)  # fmt: skip
def test_claims_on_complete_cells_are_cleared_where_nobody_holds_them(
    store, host, alive, age_s, gone
):
    path = write_claim(store, host, os.getpid() if alive else dead_pid(), age_s)
    store.clear_claims({"another"})
    assert path.exists()
    store.clear_claims({"another", "k"})
    assert path.exists() == (not gone)
    assert {each.name for each in path.parent.iterdir()} <= {"k"}


def test_clearing_claims_of_an_empty_store_does_nothing(store):
    store.clear_claims({"k"})
    assert not (store.root / "claims").exists()


def test_a_claim_that_another_took_over_is_left_alone(store):
    claim = store.claim("k")
    assert claim is not None
    path = write_claim(store, "elsewhere", 1)
    claim.release()
    assert path.exists()


def claim_and_hold(root, barrier, queue):
    barrier.wait()
    claim = Store(Path(root)).claim("k")
    queue.put(claim is not None)
    barrier.wait()
    if claim is not None:
        claim.release()


def test_of_many_at_once_one_gets_the_claim(store):
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(3), context.Queue()
    several = [
        context.Process(target=claim_and_hold, args=(str(store.root), barrier, queue))
        for _ in range(3)
    ]
    for process in several:
        process.start()
    got = [queue.get(timeout=60) for _ in several]
    for process in several:
        process.join()
    assert sorted(got) == [False, False, True]

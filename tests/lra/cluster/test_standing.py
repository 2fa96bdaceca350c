"""What `lra watch` says of workers that were killed, of missing data, of progress and of time."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster.local import LocalEngine
from lra.cluster.plan import StoredPlan, plan_folder
from lra.cluster.progress_of import KILLED, Watcher, sweep_lines, worker_lines
from lra.cluster.reporting import DONE
from lra.cluster.state import WorkerState
from lra.runners.isolation.progress import Progress
from lra.runners.records import Measurement, Status
from lra.sweep.planned_cells import NO_DATA
from tests.lra.sweep.small_sweeps import TINY

HOUR = 3600.0
LEFT_S = 741.8
ROW = Measurement(metric="accuracy", value=0.5, labels={"split": "test"})


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    """Watch a sweep of two trainings that nobody has begun."""
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    words = ("model=identity", "seed=0,1", f"results={tmp_path}", "sweep=some")
    assert main(["submit", *TINY, *words]) == 0
    plan = StoredPlan(plan_folder(tmp_path, "some"))
    yield Watcher(plan)
    plan.close()


def seen(watcher: Watcher) -> str:
    standing = watcher.look()
    titles = {entry.key: entry.key for entry in watcher.plan.entries}
    return "\n".join([*sweep_lines(standing, titles, 9), *worker_lines(standing, 9)])


def test_a_worker_that_was_killed_here_is_gone(watcher: Watcher) -> None:
    state = WorkerState(watcher.plan.folder, "mine", "")
    state.begin(watcher.plan.entries[0].key, "the first")
    assert "worker mine: running, no finished run" in seen(watcher)
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        pass
    state.about |= {"pid": killed.pid}
    state.write()
    (worker,) = watcher.look().workers
    assert (worker["doing"], worker["cells"]) == (KILLED, {})
    assert "worker mine: gone (killed), no finished run" in seen(watcher)
    assert "1 worker ended: somebody killed the worker" in seen(watcher)
    state.about |= {"place": "another machine"}
    state.write()
    assert "worker mine: running" in seen(watcher), "of another machine nothing is known"


def test_cells_without_their_data_are_told_and_are_no_good_end(
    watcher: Watcher, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = watcher.plan
    why = "lra data prepare listops"
    lacks = replace(ROW, value=None, status=Status.skipped, reason=why, labels=NO_DATA)
    for place in range(2):
        watcher.store.write(plan.cell(place), [lacks], (), {})
    capsys.readouterr()
    assert main(["watch", "some", "--results", str(plan.root)]) == 1
    assert f"and 1 more ended as skipped: {why} (lra show " in capsys.readouterr().out


def test_skipped_cells_are_counted_apart_and_the_report_is_told_until_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    words = ("model=identity", "seed=0,1", f"results={tmp_path}", "sweep=some", "report=true")
    assert main(["submit", *TINY, *words]) == 0
    watcher = Watcher(plan := StoredPlan(plan_folder(tmp_path, "some")))
    skipped = replace(ROW, value=None, status=Status.skipped, reason="too long")
    for place, row in enumerate((ROW, skipped)):
        watcher.store.write(plan.cell(place), [row], (), {})
    worker = WorkerState(plan.folder, "mine", "")
    worker.say("running")
    assert watcher.look().unwritten == "the report"
    assert "2 of 2 runs have ended (100%): 1 ok, 1 skipped, 0 running" in seen(watcher)
    assert "a worker is writing the report" in seen(watcher)
    worker.over(0, "")
    assert "the report must still be written: type lra report --sweep some" in seen(watcher)
    (plan.folder / DONE).write_text(json.dumps({"plan": plan.head["made"]}))
    assert "written" not in seen(watcher)
    assert watcher.look().unwritten == ""
    plan.close()


def test_progress_and_time_are_those_of_the_cell_that_runs(
    watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = watcher.plan, watcher.store
    store.write(plan.cell(0), [ROW], (), {})
    held = store.claim(plan.entries[1].key, title="the second", worker="mine")
    state = WorkerState(plan.folder, "mine", "")
    state.begin(plan.entries[1].key, "the second")
    state.advance(plan.entries[1].key, Progress(unit="step", done=16, total=300, left_s=LEFT_S))
    state.write()
    standing = watcher.look()
    assert standing.per_hour is not None
    assert standing.per_hour > HOUR / 60
    assert standing.left_s is not None
    assert standing.left_s >= LEFT_S
    assert standing.running[0].left_s == LEFT_S
    assert "  the second: step 16/300, 13 min left (on mine " in seen(watcher)
    held.release()
    stopped = watcher.look()
    later(monkeypatch, 5 * HOUR)
    again = watcher.look()
    assert (again.per_hour, again.left_s) == (stopped.per_hour, None)
    assert f"no worker is active. To resume: type lra work some --results {plan.root}, or" in seen(
        watcher
    )


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now: Callable[[], float] = time.time
    monkeypatch.setattr("lra.cluster.progress_of.time.time", lambda: now() + seconds)


def test_progress_in_json(watcher: Watcher, capsys: pytest.CaptureFixture[str]) -> None:
    key = watcher.plan.entries[0].key
    with watcher.store.claim(key, worker="mine") or pytest.fail("taken"):
        state = WorkerState(watcher.plan.folder, "mine", "")
        state.begin(key, "the first")
        state.advance(key, Progress(unit="step", done=2, total=9, left_s=LEFT_S))
        state.write()
        assert "running, 1 waiting\n  the first: step 2/9, 13 min left (on mine " in seen(watcher)
        state.advance(key, Progress(phase="evaluating test", done=2, total=9))
        state.write()
        capsys.readouterr()
        assert main(["watch", "some", "--results", str(watcher.plan.root), "--json"]) == 3
    (cell,) = json.loads(capsys.readouterr().out)["running"]
    assert (cell["progress"], cell["left_s"]) == ("evaluating test 2 of 9", None)

"""A worker whose storage fails: tried again for a while, saved, and queued again."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster import worker as module
from lra.cluster.cells import WorkerOptions
from lra.cluster.engine import STORAGE
from lra.cluster.fork_workers import together
from lra.cluster.local import LocalEngine
from lra.cluster.plan import StoredPlan, plan_folder
from lra.cluster.slurm_job import MOST_RESTARTS, WorkerJob
from lra.cluster.worker import Worker, work
from lra.execution.executor import Executor
from lra.sweep.sweep import SweepOutcome
from tests.faulty_calls import FOREVER, PASSING, Faults
from tests.lra_process import python

TINY = ("task=listops", "task.source=sample", "model=identity", "logger=none", "sweep=some")
Turn = Callable[[Executor], SweepOutcome]


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(Worker, "_reason_to_end", lambda *_: "all is done")


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    assert main(["submit", *TINY, f"results={tmp_path / 'results'}"]) == 0
    return plan_folder(tmp_path / "results", "some")


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[Turn]:
    """What the executor does in each turn, and nothing after the last."""
    given: list[Turn] = []

    def run(self: Executor) -> SweepOutcome:
        return given.pop(0)(self) if given else SweepOutcome()

    monkeypatch.setattr(Executor, "run", run)
    return given


def ended(plan: Path) -> tuple[int, str]:
    code = work(plan, WorkerOptions(name="one"))
    return code, (plan / "logs" / "one.log").read_text()


def failing(number: int) -> Turn:
    def turn(_: Executor) -> SweepOutcome:
        raise OSError(number, os.strerror(number), "/somewhere/claims")

    return turn


def refused(passing: bool) -> Turn:
    return lambda _: SweepOutcome(refused="no room", may_pass=passing)


def test_one_failed_call_ends_no_worker(plan: Path, turns: list[Turn]) -> None:
    for number in PASSING:
        turns += [failing(number), refused(passing=True), failing(number)]
        code, log = ended(plan)
        assert code == 0
        assert log.count("storage failed; the current run is saved") == 3
        assert os.strerror(number) in log
        assert "/somewhere/claims" in log
        (plan / "logs" / "one.log").unlink()


def test_a_storage_that_goes_on_failing_has_the_job_queued_again(
    plan: Path, turns: list[Turn]
) -> None:
    turns += [failing(errno.ETIMEDOUT)] * 4
    code, log = ended(plan)
    assert code == STORAGE
    assert not turns
    assert "stopped: " in log
    assert "the worker ends with 74" in log


@pytest.mark.parametrize("turn", [refused(passing=False), failing(errno.ENOSPC)])
def test_what_does_not_pass_ends_the_worker(turn: Turn, plan: Path, turns: list[Turn]) -> None:
    turns += [turn]
    code, log = ended(plan)
    assert code == 2
    assert "storage failed" not in log


def test_what_ends_meanwhile_gives_new_patience(plan: Path, turns: list[Turn]) -> None:
    def with_a_cell(executor: Executor) -> SweepOutcome:
        executor.board.endings["ok"] += 1
        return refused(passing=True)(executor)

    turns += [refused(passing=True)] * 3 + [with_a_cell] + [refused(passing=True)] * 2
    assert ended(plan)[0] == 0


def test_calls_that_are_tried_again_stand_in_the_log(
    plan: Path, turns: list[Turn], monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(monkeypatch)
    faults.fail(errno.EHOSTDOWN, "plan", 1, only="open")
    StoredPlan(plan).close()
    assert faults.failed == 1

    def looking(executor: Executor) -> SweepOutcome:
        faults.fail(errno.EHOSTDOWN, "claims", 1)
        executor.store.claims()
        return SweepOutcome()

    turns += [looking]
    code, log = ended(plan)
    assert code == 0
    assert "Host is down" in log
    assert "the call is repeated" in log


def test_a_worker_that_cannot_begin_is_queued_again_too(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in PASSING:
        with monkeypatch.context() as patch:
            Faults(patch).fail(number, "plan.json", FOREVER)
            assert main(["work", "some", "--results", str(plan.parent.parent)]) == STORAGE
        said = capsys.readouterr().err
        assert os.strerror(number) in said
        assert "plan.json" in said


@pytest.mark.usefixtures("turns")
def test_a_first_read_that_fails_ends_no_worker(
    plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of an open file, whose error names no path."""
    failed: list[int] = []

    def opened(folder: Path) -> StoredPlan:
        if not failed:
            failed.append(1)
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return StoredPlan(folder)

    monkeypatch.setattr(module, "StoredPlan", opened)
    assert ended(plan)[0] == 0
    assert failed


def test_the_way_out_of_reading_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    from lra.cli import message

    stale = OSError(errno.ESTALE, os.strerror(errno.ESTALE), "/somewhere")
    assert message(stale) == "Stale file handle: /somewhere; mount that folder again"
    down = OSError(errno.EHOSTDOWN, os.strerror(errno.EHOSTDOWN), "/somewhere")
    assert "see whether that file system and its server work" in message(down)
    assert message(FileNotFoundError(2, "No such file or directory", "/a")).endswith(": /a")


def test_jobs_of_slurm_are_queued_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requeued: list[int] = []
    monkeypatch.setattr("lra.cluster.slurm_job._requeue", lambda: requeued.append(1))
    monkeypatch.setattr("lra.cluster.slurm_job.check_token", lambda _: "seen")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    job = WorkerJob(["sh", "-c", f"exit {STORAGE}"], tmp_path, requeue=True, seconds=None)
    with pytest.raises(SystemExit, match="74"):  # SLURM would have ended this process by now
        job()
    assert requeued == [1]
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(MOST_RESTARTS))
    with pytest.raises(SystemExit, match="74"):
        job()
    assert requeued == [1]
    assert together([0, STORAGE, 75]) == STORAGE


WITH_A_LOG_THAT_FAILS_ONCE = """
import errno, io, sys
from lra.cluster import fork_workers

class Log(io.FileIO):
    left = 1

    def write(self, data):
        if Log.left:
            Log.left -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return super().write(data)

fork_workers.IMPORTED = ()
fork_workers.isolate.prepare = fork_workers.isolate.start_server = lambda *_, **__: None
sys.stdout = io.TextIOWrapper(io.BufferedWriter(Log(1, "w", closefd=False)))
code = fork_workers.run_in_forks(2, lambda number: 0)
sys.stdout.flush()
sys.exit(code)
"""


def test_a_line_of_the_log_that_cannot_be_written_starts_the_workers_all_the_same() -> None:
    """All four workers of one start in fifty were lost so."""
    done = python("-c", WITH_A_LOG_THAT_FAILS_ONCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 workers begin" in done.stdout, "written with the next line"
    assert "2 workers ended" in done.stdout

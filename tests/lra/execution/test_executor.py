"""The executor over a plan: what refuses or fails in it, and what it says of data."""

import errno
import os
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lra.composition.hydra_entry import entries
from lra.execution.executor import CellGroup, ClaimedCell, Executor, prepare_task
from lra.runners.isolation import isolate
from lra.runners.isolation.places import DevicePlace, Places
from lra.sweep.cell_list import build
from lra.sweep.sweep import Sweep
from lra.sweep.sweep_logger import SweepLogger
from lra.tasks.errors import NotPrepared
from lra.terminal.board import ProgressBoard

WORDS = ("task=listops", "task.source=sample", "model=identity", "logger=none")


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    built = build(entries([*WORDS, f"results={tmp_path}"]))
    built.planned[0].run.task.prepare()
    return built


class OneCellThenAnError:
    """A plan whose first group claims a cell, and fails as the next one is asked for."""

    def __init__(self, sweep: Sweep, error: Exception) -> None:
        self.sweep, self.error = sweep, error
        self.given, self.closed = 0, False

    def groups(self) -> Generator[CellGroup]:
        try:
            while True:
                self.given += 1
                yield CellGroup({1: self._claimed()}, Places([DevicePlace()]))
        finally:
            self.closed = True

    def _claimed(self) -> Iterator[list[ClaimedCell]]:
        (planned,) = self.sweep.planned
        claim = self.sweep.store.claim(planned.cell.key)
        assert claim is not None
        yield [ClaimedCell(planned, claim)]
        raise self.error

    def advance(self, key: str, message: object) -> None: ...

    def ended(self, key: str, status: str) -> None: ...


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the jobs that would have been started."""
    names: list[str] = []

    def pool(lanes: Mapping[int, Iterator[isolate.Job]], **_: Any) -> None:
        for lane in lanes.values():
            for job in lane:
                names.append(job.name)  # what was taken before an error counts

    monkeypatch.setattr(isolate, "pool", pool)
    return names


def test_a_storage_that_takes_no_claim_ends_the_work(sweep: Sweep, begun: list[str]) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(sweep.root / "claims"))
    plan = OneCellThenAnError(sweep, error)
    board = ProgressBoard([], sweep.titles)
    outcome = Executor(plan, sweep.store, board, SweepLogger(sweep)).run()
    assert outcome.refused is not None
    assert "No space left" in outcome.refused
    assert begun == [sweep.cells[0].key]
    assert (plan.given, plan.closed) == (1, True)
    assert sweep.store.claims() == {}


def test_any_other_fault_is_raised_once_claims_are_given_back(
    sweep: Sweep, begun: list[str]
) -> None:
    for error in (ValueError("of the plan"), FileNotFoundError(errno.ENOENT, "gone")):
        plan = OneCellThenAnError(sweep, error)
        executor = Executor(plan, sweep.store, ProgressBoard([], sweep.titles), SweepLogger(sweep))
        with pytest.raises(type(error)):
            executor.run()
        assert executor.outcome.refused is None
        assert plan.closed
        assert sweep.store.claims() == {}
    assert begun == [sweep.cells[0].key] * 2


def test_remarks_on_data_are_printed_and_their_lack_is_returned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def lacking() -> None:
        raise NotPrepared("no file")

    board = ProgressBoard([], {})
    task: Any = SimpleNamespace(
        spec=SimpleNamespace(name="mine"), prepare=lambda: None, remarks={"a": "odd rows"}
    )
    assert prepare_task(task, board) is None
    assert "mine: warning: odd rows" in capsys.readouterr().out
    task.prepare = lacking
    fault = prepare_task(task, board)
    assert isinstance(fault, NotPrepared)
    assert capsys.readouterr().out == ""

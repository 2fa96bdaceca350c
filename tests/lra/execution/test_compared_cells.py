"""Cells that are compared: probed one by one, timed together, and none of them lost."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra.composition.hydra_entry import entries
from lra.execution.executor import Executor
from lra.execution.in_memory import MemoryPlan
from lra.runners.isolation import isolate
from lra.runners.isolation.child import Ending
from lra.runners.records import Measurement, Status
from lra.runners.runner import Probe
from lra.runners.storage.claims import Claim
from lra.runners.store import read_rows
from lra.sweep.cell_list import build
from lra.sweep.sweep import Sweep
from lra.sweep.sweep_logger import SweepLogger
from lra.terminal.board import ProgressBoard

WORDS = (
    "-m", "task=listops", "task.source=sample", "logger=none", "report=false", "runner=scaling",
    "runner.modes=[step]", "runner.retry=[]", "model=linear,softmax,sdpa",
)  # fmt: skip
OK, OOM = Ending(Status.ok), Ending(Status.out_of_memory, "no memory left")
KILLED = Ending(Status.skipped, "stopped by SIGKILL from outside", interrupted=True)
SILENT = Ending(Status.timeout, "took longer than 1800 s")
BROKEN = Ending(Status.crashed, "the process was killed by SIGSEGV")
FULL = Ending(Status.skipped, "No space left on device", interrupted=True, storage=True)
ROW = Measurement(metric="peak_tensor_bytes", value=1.0)
TIME = Measurement(metric="time", value=2.0)

Answer = Callable[[isolate.Job], tuple[list[object], Ending]]


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return build(entries([*WORDS, "runner.lengths=[32,64]", f"results={tmp_path}"]))


def play(
    monkeypatch: pytest.MonkeyPatch,
    sweep: Sweep,
    answer: Answer,
    until: Callable[[isolate.Job], bool] = lambda job: False,
) -> tuple[Executor, list[str]]:
    """Run a sweep whose processes send what `answer` says; a signal comes after job `until`."""
    jobs: list[str] = []
    names = {cell.key: f"{cell.columns['model']}{cell.columns['length']}" for cell in sweep.cells}

    def pool(lanes: Mapping[int, Iterator[isolate.Job]], **on: Any) -> signal.Signals | None:
        for job in lanes[1]:
            cells = job.argument.get("cells") or [job.name]
            parts = "+".join(names[key] for key in cells)
            jobs.append(f"{'probe ' if job.argument['probed'] is True else ''}{parts}")
            on["on_start"](job, ())
            assert {*cells} <= {*sweep.store.claims()}
            messages, ending = answer(job)
            for message in messages:
                on["on_message"](job, message)
            on["on_end"](job, ending)
            if until(job):
                return signal.SIGTERM
            if on["stop"]() is not None:
                return None
        return None

    monkeypatch.setattr(isolate, "pool", pool)
    board = ProgressBoard([], sweep.titles)
    plan = MemoryPlan(sweep, sweep.planned, board)
    executor = Executor(plan, sweep.store, board, SweepLogger(sweep))
    executor.run()
    return executor, jobs


def compares(job: isolate.Job) -> bool:
    return "cells" in job.argument


def sound(job: isolate.Job) -> tuple[list[object], Ending]:
    """Answer as the processes do."""
    if compares(job):
        return [(key, TIME) for key in job.argument["cells"]], OK
    return ([ROW, Probe({"peak": 1})] if job.argument["probed"] else [ROW, TIME]), OK


def metrics(sweep: Sweep) -> dict[str, list[str]]:
    """Return the metrics of each cell, by model and length."""
    rows = read_rows(sweep.root)
    found: dict[str, list[str]] = {}
    for model, length, metric in zip(rows["model"], rows["length"], rows["metric"], strict=True):
        found.setdefault(f"{model}{length}", []).append(metric)
    return found


WHOLE = {
    f"{model}{length}": ["peak_tensor_bytes", "time"]
    for model in ("linear", "softmax", "sdpa") for length in (32, 64)
}  # fmt: skip
AT_32 = ["probe linear32", "probe softmax32", "probe sdpa32", "linear32+softmax32+sdpa32"]


def test_cells_of_one_length_are_compared_and_stored_by_themselves(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, jobs = play(monkeypatch, sweep, sound)
    assert jobs == [*AT_32, *(job.replace("32", "64") for job in AT_32)]
    assert metrics(sweep) == WHOLE
    assert set(executor.outcome.endings.values()) == {Status.ok}
    assert len(executor.outcome.endings) == 6
    assert sweep.store.claims() == {}
    (environment, *_) = sweep.root.rglob("environment-*.json")
    about = json.loads(environment.read_text())
    assert about["took_s"] >= 0
    assert about["reference_shares"] == {"sdpa": 0.0, "softmax": 0.0}


@pytest.mark.parametrize("sent", [[ROW], [ROW, Probe({"peak": 1})]], ids=["early", "late"])
def test_a_cell_that_fails_by_itself_takes_no_other_with_it(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, sent: list[object]
) -> None:
    def failing(job: isolate.Job) -> tuple[list[object], Ending]:
        if not compares(job) and job.name == sweep.cells[0].key:
            return sent, BROKEN
        return sound(job)

    executor, jobs = play(monkeypatch, sweep, failing)
    assert jobs[:4] == [*AT_32[:3], "softmax32+sdpa32"]
    assert metrics(sweep) == WHOLE | {"linear32": ["time"]}
    assert executor.outcome.endings[sweep.cells[0].key] is Status.crashed


@pytest.mark.parametrize("ending", [OOM, BROKEN, KILLED, SILENT])
def test_where_a_comparison_fails_each_is_measured_alone(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, ending: Ending
) -> None:
    def failing(job: isolate.Job) -> tuple[list[object], Ending]:
        messages, end = sound(job)
        if compares(job):  # one that hangs does not have the time of the others
            assert (job.seconds, job.silent_s) == (1800.0, 600.0)
        return (messages[:1], ending) if compares(job) else (messages, end)

    executor, jobs = play(monkeypatch, sweep, failing)
    assert jobs[:7] == [*AT_32, "linear32", "softmax32", "sdpa32"]
    assert metrics(sweep) == WHOLE  # none of them twice
    assert set(executor.outcome.endings.values()) == {Status.ok}
    assert sweep.store.claims() == {}


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_signal_leaves_all_that_began_without_rows_and_without_claims(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(range(number + 1))

    def answer(job: isolate.Job) -> tuple[list[object], Ending]:
        messages, end = sound(job)
        stopped = Ending(Status.skipped, "interrupted by SIGTERM", interrupted=True)
        return messages, stopped if next(left) == number else end

    begun: list[object] = []
    executor, jobs = play(
        monkeypatch, sweep, answer, lambda job: bool(begun.append(job)) or len(begun) > number
    )
    assert jobs == AT_32[: number + 1]
    assert executor.outcome.stopped_by is signal.SIGTERM
    assert metrics(sweep) == {}
    assert sweep.store.claims() == {}
    assert capsys.readouterr().out.count("stopped, without rows: interrupted by SIGTERM") == 3


def test_a_storage_that_refuses_in_a_comparison_ends_the_work(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(job: isolate.Job) -> tuple[list[object], Ending]:
        return ([], FULL) if compares(job) else sound(job)

    executor, jobs = play(monkeypatch, sweep, answer)
    assert jobs == AT_32
    assert executor.outcome.refused == "No space left on device"
    assert metrics(sweep) == {}
    assert sweep.store.claims() == {}


def test_what_others_hold_or_have_done_is_not_compared(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[Claim | None] = [sweep.store.claim(sweep.cells[2].key)]
    of_linear = sweep.planned[1]
    assert of_linear.cell.columns["length"] == 64
    sweep.store.write(of_linear.cell, [TIME], [], {})
    _, jobs = play(monkeypatch, sweep, sound)
    assert jobs == [
        "probe linear32", "probe sdpa32", "linear32+sdpa32",
        "probe softmax64", "probe sdpa64", "softmax64+sdpa64",
    ]  # fmt: skip
    held[0].release()


def test_one_that_is_alone_is_measured_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*WORDS[:-1], "model=linear", "runner.lengths=[32]", f"results={tmp_path}"]
    _, jobs = play(monkeypatch, build(entries(words)), sound)
    assert jobs == ["linear32"]


def test_what_differs_in_more_than_the_model_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *WORDS[:-1], "model=linear,sdpa", "model.backbone.width=16,32", "runner.lengths=[32]",
        f"results={tmp_path}",
    ]  # fmt: skip
    swept = build(entries(words))
    _, jobs = play(monkeypatch, swept, sound)
    assert sorted(job for job in jobs if "+" in job) == ["linear32+sdpa32"] * 2


BRIEF = (
    "runner.warmup_steps=1", "runner.timed_steps=3", "runner.long_timed_steps=3",
    "runner.repeat_limit_s=0", "hardware.token_budget=64", "hardware.threads=1",
)  # fmt: skip


def test_rows_are_those_of_cells_that_are_measured_alone(tmp_path: Path) -> None:
    from lra.cli import main

    words = [*WORDS, *BRIEF, "runner.lengths=[32]"]
    assert main(["run", *words, f"results={tmp_path / 'together'}"]) == 0
    alone = ["linear", "softmax", "sdpa"]
    for model in alone:
        words[words.index(next(w for w in words if w.startswith("model=")))] = f"model={model}"
        assert main(["run", *words, f"results={tmp_path / 'alone'}"]) == 0

    def described(rows: pd.DataFrame) -> list[tuple[object, ...]]:
        exact = {"peak_tensor_bytes", "reference_peak_tensor_bytes", "saved_bytes", "flops",
                 "parameters", "batch_size", "peak_tensor_bytes_ratio", "timed_steps"}  # fmt: skip
        marks = ("disturbed", "unwatched")
        return sorted(
            (
                row.cell, row.metric, row.status, row.unit, row.value if row.metric in exact else 0,
                str(sorted((k, v) for k, v in dict(row.labels).items() if k not in marks)),
            )
            for row in rows.itertuples()
        )  # fmt: skip

    together, apart = (read_rows(tmp_path / name) for name in ("together", "alone"))
    assert described(together) == described(apart)
    times = {row.model: tuple(row.samples) for row in together.itertuples() if row.metric == "time"}
    for row in together.itertuples():
        if row.metric == "reference_time":
            assert tuple(row.samples) == times[dict(row.labels)["reference"]]

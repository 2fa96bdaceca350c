"""What a dashboard gets while cells run: files read back, and a server on the loopback."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.reports.dashboard.describe import BASELINES
from lra.reports.dashboard.keys import GRADIENT_NORM, LOSS, STEP_LOSS, TRAINING
from lra.reports.dashboard.state import read_state, taken
from lra.results.disk import old
from lra.results.replay import replay
from lra.results.stored import stored
from lra.runners.isolation.progress import Begun, Progress, TrainingStep
from lra.runners.records import Cell, Measurement, Status
from lra.sweep import cell_list, live as live_module
from lra.sweep.live import LiveSweep
from lra.sweep.sweep import Sweep
from tests.reports.dashboard.offline_runs import Run, records
from tests.reports.dashboard.wandb_server import KEY, WandbServer, wandb_server

WORDS = ("task=listops", "task.source=sample", "optim.steps=40", "optim.warmup_steps=0",
         "sweep=watched")  # fmt: skip
TRAINED = ("model=linear", *WORDS)
SCALING = ("runner=scaling", "model=linear", "runner.lengths=[64,128]", "runner.modes=[forward]")
STEP = TrainingStep(
    gradient_norm=2.0, examples_per_s=30.0, tokens_per_s=600.0, step_time_s=0.1,
    data_wait_share=0.25, process_bytes=2**28, gpu_bytes=2**20,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(live_module, "EVERY_S", 0.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with wandb_server() as found:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", found.url)
        yield found


@cache
def planned(*words: str) -> Sweep:
    return cell_list.build(entries([*words]))


def swept(folder: Path, *words: str) -> Sweep:
    return replace(planned(*words), root=folder)


def train(live: LiveSweep, cell: Cell, steps: Sequence[int]) -> list[Measurement]:
    """Say what a training says, from its first step to the last of `steps`."""
    live.message(cell, Begun(process=os.getpid()))
    rows = []
    for step in range(10, steps[-1] + 1, 10):  # a resumed one says its rows again
        row = Measurement(metric="train_loss", value=4.0 - step / 16, step=step)
        live.message(cell, row)
        rows.append(row)
        if step in steps:
            now = Progress(
                unit="step",
                done=step + 1,
                total=40,
                loss=1.0,
                learning_rate=0.5,
                left_s=3.0,
                step=STEP,
            )
            live.message(cell, now)
    return rows


def end(sweep: Sweep, live: LiveSweep, cell: Cell, rows: Sequence[Measurement]) -> None:
    final = Measurement(metric="accuracy", value=0.5, labels={"split": "test"})
    sweep.store.record_in_sweep(sweep.name, cell.key)
    sweep.store.write(cell, [*rows, final], [], {})
    live.ended(cell, Status.ok)


def lines(run: Run) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for line in run.history:
        numbers = {k: v for k, v in line.items() if k[0] != "_"}
        assert line["_step"] not in found  # never a step twice
        found[line["_step"]] = numbers
    return found


def exit_code(run: Run) -> int:
    (found,) = [r for r in records(run.folder) if r.WhichOneof("record_type") == "exit"]
    return int(found.exit.exit_code)


def written(folder: Path) -> list[Run]:
    return [Run(path) for path in sorted((folder / "wandb").glob("*run-*"))]


def one_training(folder: Path, *words: str) -> tuple[Sweep, LiveSweep]:
    """Tell a dashboard of one whole training."""
    sweep = swept(folder, *TRAINED, *words)
    (planned,) = sweep.planned
    live = LiveSweep(sweep, sweep.cells)
    live.check()
    end(sweep, live, planned.cell, train(live, planned.cell, (10, 20, 30, 40)))
    live.close()
    return sweep, live


def test_a_file_and_a_server_get_the_same_of_a_training(
    tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that needs no pandas."""
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted" / "pandas.py").write_text("raise ImportError('planted')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "planted"))
    offline, live = one_training(tmp_path / "off")
    assert live.runs is not None
    assert (live.runs.failed, live.runs.lost) == ("", "")
    (run,) = written(tmp_path / "off")
    assert run.summary["status"] == "complete"
    found = lines(run)
    assert list(found) == [10, 11, 20, 21, 30, 31, 40, 41]
    assert found[10] == {LOSS: 3.375, "optimiser_step": 10.0}
    assert found[11].keys() == {"optimiser_step", *TRAINING} - {LOSS}
    assert (found[11][STEP_LOSS], found[11][GRADIENT_NORM]) == (1.0, 2.0)
    assert run.summary["quality/test_accuracy"] == 0.5
    assert (run.summary["status"], exit_code(run)) == ("complete", 0)
    assert run.run.display_name == "linear/listops/s0"
    assert (run.config["model"], run.config["optim__steps"]) == ("linear", 40)
    assert run.config["model__mixer__chunk"] == 64
    assert not any("." in key or isinstance(value, dict) for key, value in run.config.items()
                   if key != "_wandb")  # fmt: skip
    # the copy at the end adds the report and leaves the run alone
    before = [file.stat().st_mtime_ns for file in run.folder.glob("*.wandb")]
    sentence = replay(offline, None, stored(offline.root, offline.name)[0], [])
    assert sentence.startswith("2 W&B runs are offline")
    assert {each.run.job_type for each in written(tmp_path / "off")} == {"train", "report"}
    assert [file.stat().st_mtime_ns for file in run.folder.glob("*.wandb")] == before

    _, told_online = one_training(tmp_path / "on", "logger=wandb_online")
    runs = told_online.runs
    assert runs is not None
    assert (runs.offline, runs.failed, told_online.dropped) == ("", "", 0)
    (name,) = server.history
    arrived = {
        line["_step"]: {k: v for k, v in line.items() if k[0] != "_"}
        for line in server.history[name].values()
    }
    assert arrived == found
    assert server.exits == {name: 0}
    assert server.runs[name]["groupName"] == "watched"


def test_a_training_that_was_stopped_goes_on_in_one_file(tmp_path: Path) -> None:
    sweep = swept(tmp_path / "r", *TRAINED)
    cell = sweep.planned[0].cell
    first = LiveSweep(sweep, sweep.cells)
    train(first, cell, (10, 20))
    first.left(cell, "stopped by SIGTERM")
    first.close()
    (run,) = written(tmp_path / "r")
    assert (run.summary["status"], exit_code(run)) == ("stopped", 255)
    assert run.summary["reason"] == "stopped by SIGTERM"
    again = LiveSweep(sweep, sweep.cells)
    end(sweep, again, cell, train(again, cell, (20, 30, 40)))
    again.close()
    (run,) = written(tmp_path / "r")
    assert list(lines(run)) == [10, 11, 20, 21, 30, 31, 40, 41]
    assert (run.summary["status"], exit_code(run)) == ("complete", 0)
    (state,) = read_state(tmp_path / "r/wandb").values()
    assert list(state.cells) == [cell.key]
    assert state.cells[cell.key] != ""


def test_cells_of_cost_report_as_they_end_and_failures_say_why(tmp_path: Path) -> None:
    words = ("-m", *WORDS, *SCALING, "model=linear,fnet")
    sweep = swept(tmp_path / "r", *words)
    cells = {(p.cell.columns["model"], p.cell.columns["length"]): p.cell for p in sweep.planned}
    live = LiveSweep(sweep, sweep.cells)
    first = cells.pop(("linear", 64))
    live.message(first, Begun(process=os.getpid()))
    sweep.store.write(first, [Measurement(metric="time", value=0.25)], [], {})
    live.ended(first, Status.ok)
    live.close()  # interrupted; what follows goes on in the same runs
    live = LiveSweep(sweep, [*cells.values()])
    for cell in cells.values():
        why = (Status.out_of_memory, "needs 5 GiB")
        row = Measurement(metric="time", status=why[0], reason=why[1])
        sweep.store.write(cell, [row], [], {})
        live.ended(cell, *why)
    live.close()
    linear, fnet = sorted(written(tmp_path / "r"), key=lambda run: run.run.display_name)[::-1]
    assert [run.run.display_name for run in (linear, fnet)] == [
        "linear/listops/s0/64-128", "fnet/listops/s0/64-128",
    ]  # fmt: skip
    assert linear.values("speed/forward_time") == [0.25]
    assert linear.values("sequence_length") == [64]
    assert (exit_code(linear), exit_code(fnet)) == (0, 1)
    assert (linear.summary["status"], fnet.summary["status"]) == ("incomplete", "out_of_memory")
    assert linear.summary["failed_at_length"] == 128
    assert fnet.summary["reason"] == "needs 5 GiB"


@pytest.mark.parametrize("fault", ["hangs", "refuses", "unknown key", "dies"])
def test_a_bad_server_costs_nothing_but_a_sentence(
    tmp_path: Path, server: WandbServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_module, "CLOSED_S", 12.0)
    monkeypatch.setattr(live_module, "FINISH_S", 2.0)
    if fault == "refuses":
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    server.hangs, server.known_key = fault == "hangs", fault != "unknown key"
    server.dies_after = "CreateRunFiles" if fault == "dies" else ""
    _, live = one_training(tmp_path / "r", "logger=wandb_online")
    assert live.runs is not None
    (run,) = written(tmp_path / "r")
    assert list(lines(run)) == [10, 11, 20, 21, 30, 31, 40, 41]
    (state,) = read_state(tmp_path / "r/wandb").values()
    assert (state.mode, Path(state.path)) == ("offline", run.folder)  # `wandb sync` may send it
    if fault == "dies":
        assert live.runs.unsent == [str(run.folder)]
    else:
        word = "does not know the API key" if fault == "unknown key" else "does not answer"
        assert word in live.runs.offline
        assert run.folder.name.startswith("offline-run-")
        assert server.runs == {}


def test_no_key_is_said_at_once(tmp_path: Path) -> None:
    sweep = swept(tmp_path / "r", *TRAINED, "logger=wandb_online")
    live = LiveSweep(sweep, sweep.cells)
    sentence = live.check()
    live.close()
    assert sentence.startswith("W&B: No API key configured")
    assert sentence.endswith(f"its runs go into {tmp_path / 'r/wandb'}")


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    sweep = swept(tmp_path / "r", *TRAINED)
    (tmp_path / "r").mkdir()
    (tmp_path / "r/wandb").write_text("a file where a folder is wanted")
    live = LiveSweep(sweep, sweep.cells)
    assert live.check().startswith("W&B gets nothing while cells run: ")
    live.ended(sweep.planned[0].cell, Status.ok)
    live.close()


def test_a_process_that_takes_nothing_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nsleep 600 &\nsleep 600\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(live_module, "CHECKED_S", 0.2)
    monkeypatch.setattr(live_module, "CLOSED_S", 0.2)
    sweep = swept(tmp_path / "r", *TRAINED, "logger=wandb_online")
    live = LiveSweep(sweep, sweep.cells)
    cell = sweep.planned[0].cell
    for step in range(30_000):
        live.message(cell, Progress(unit="step", done=step, total=40, loss=1.0))
    assert live.dropped > 25_000
    assert live.check() == "W&B: not ready after 0.2 s; the cells do not wait for it"
    live.message(cell, Measurement(metric="train_loss", value=1.0, step=1))
    live.close()
    assert live.runs is not None
    assert live.runs.failed == "it took longer than 0.2 s to end"
    assert list((tmp_path / "r/wandb").glob("*run-*")) == []


def test_what_a_killed_writer_staged_goes_and_that_of_others_stays(tmp_path: Path) -> None:
    sweep, data = swept(tmp_path / "r", *TRAINED), tmp_path / "r/wandb/data"
    live = LiveSweep(sweep, sweep.cells)
    (killed,) = data.iterdir()
    other = LiveSweep(sweep, sweep.cells)
    try:
        held = {*data.iterdir()} - {killed}
        assert killed.exists()
        assert not [*old(sweep.root)]
        assert live.runs is not None
        os.killpg(live.runs.process_group, signal.SIGKILL)
        while live.goes_on:
            time.sleep(0.01)
        assert [item.paths for item in old(sweep.root)] == [[killed]]
        third = LiveSweep(sweep, sweep.cells)
        assert not killed.exists()
        assert held < {*data.iterdir()}
        third.close()
    finally:
        live.close()
        other.close()
    assert not [*data.iterdir()]


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    sweep = swept(tmp_path / "r", "-m", *WORDS, *SCALING)
    one_run = LiveSweep(sweep, sweep.cells)
    for planned in sweep.planned[:1]:
        one_run.message(planned.cell, Begun(process=1))
        sweep.store.write(planned.cell, [Measurement(metric="time", value=0.25)], [], {})
        one_run.ended(planned.cell, Status.ok)
    deadline = time.monotonic() + 60
    while not (state := read_state(tmp_path / "r/wandb")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (run,) = state
    assert taken(tmp_path / "r/wandb", run) is None
    other = LiveSweep(sweep, sweep.cells[1:])
    (cell,) = (planned.cell for planned in sweep.planned[1:])
    sweep.store.write(cell, [Measurement(metric="time", value=0.5)], [], {})
    other.ended(cell, Status.ok)
    other.close()
    one_run.left(cell, "left to another sweep that is working on it")
    one_run.close()
    homes = {tuple(was.cells): Run(Path(was.path)).values("speed/forward_time")
             for was in read_state(tmp_path / "r/wandb").values()}  # fmt: skip
    assert homes == {(sweep.planned[0].cell.key,): [0.25], (cell.key,): [0.5]}


def test_baselines_of_several_tasks_are_one_run(tmp_path: Path) -> None:
    words = ("-m", "runner=certify", "task=listops,retrieval", "task.source=sample")
    sweep = swept(tmp_path / "r", *words)
    live = LiveSweep(sweep, sweep.cells)
    for planned in sweep.planned:
        row = Measurement(
            metric="accuracy", value=0.25, model="baseline/majority", labels={"split": "test"}
        )
        sweep.store.write(planned.cell, [row], [], {})
        live.ended(planned.cell, Status.ok)
    live.close()
    (run,) = written(tmp_path / "r")
    assert run.run.display_name == "baselines/2 tasks/s0"
    assert run.config["model"] == BASELINES
    assert {k: v for k, v in run.summary.items() if k.startswith("quality")} == {
        f"quality/test_accuracy/{task}_baseline/majority": 0.25 for task in ("listops", "retrieval")
    }


def test_tensorboard_gets_the_same_by_the_same_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # Its files are named by the second: a run that goes on within one must lose nothing.
    monkeypatch.setattr("tensorboardX.event_file_writer.time", SimpleNamespace(time=lambda: 1e9))
    sweep = swept(tmp_path / "r", *TRAINED, "logger=tensorboard")
    cell = sweep.planned[0].cell
    first = LiveSweep(sweep, sweep.cells)
    train(first, cell, (10, 20))
    first.left(cell, "stopped by SIGTERM")
    first.close()
    again = LiveSweep(sweep, sweep.cells)
    end(sweep, again, cell, train(again, cell, (20, 30, 40)))
    again.close()
    files = list((tmp_path / "r/tensorboard").rglob("events.*"))
    (folder,) = {file.parent for file in files}
    read = EventAccumulator(str(folder))
    read.Reload()
    assert [(e.step, e.value) for e in read.Scalars(LOSS)] == [
        (10, 3.375), (20, 2.75), (30, 2.125), (40, 1.5),
    ]  # fmt: skip
    assert [e.step for e in read.Scalars(STEP_LOSS)] == [11, 21, 31, 41]
    assert [e.value for e in read.Scalars("quality/test_accuracy")] == [0.5]
    options = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"optim__steps" in options
    rows = stored(sweep.root, sweep.name)[0]
    assert str(tmp_path / "r/tensorboard") in replay(sweep, again, rows, [])
    assert len(list((tmp_path / "r/tensorboard").rglob("events.*"))) == len(files)


def test_tensorboard_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cell_list, "find_spec", lambda name: None)
    assert main(["run", *TRAINED, "logger=tensorboard", f"results={tmp_path}"]) == 2
    assert "pip install 'lra[tensorboard]'" in capsys.readouterr().err

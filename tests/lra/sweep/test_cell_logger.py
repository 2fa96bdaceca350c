"""Runs that trainings write of themselves: read back by W&B's own tools, and what lacks them."""

import math
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.machine import probes
from lra.reports.dashboard.keys import LOSS, TRAINING, score
from lra.runners.isolation import isolate
from lra.runners.isolation.progress import Event, Progress, TrainingStep, listen
from lra.runners.records import Measurement, Status
from lra.runners.store import read_rows
from lra.sweep import cell_list, cell_logger
from lra.sweep.cell_logger import LoggedCell, logging_cell
from lra.sweep.sweep import Sweep
from lra.sweep.sweep_logger import SweepLogger
from tests.lra.cluster.shared_sweeps import ended, until
from tests.lra.sweep.small_sweeps import start
from tests.reports.dashboard.wandb_server import KEY, ServedRun, WandbServer, synced, wandb_server

pytestmark = pytest.mark.usefixtures("no_account")
WORDS = (
    "model=linear", "model.backbone.depth=1", "model.backbone.width=16", "task=listops",
    "task.source=sample", "optim.steps=200", "optim.warmup_steps=0", "optim.batch_size=8",
    "runner.log_every_steps=50", "runner.evaluate_every_steps=100", "runner.validation_examples=8",
    "sweep=watched", "report=false",
)  # fmt: skip
LONG = ("optim.steps=3000", "runner.checkpoint_every_s=0.3", "runner.evaluate_every_steps=1000")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    with wandb_server() as found:
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", found.url)
        yield found


def train(results: Path, logger: str, *words: str) -> pd.DataFrame:
    """Train, and return the rows."""
    assert main(["run", *WORDS, f"logger={logger}", f"results={results}", *words]) == 0
    return read_rows(results)


def curve(rows: pd.DataFrame) -> dict[str, list[tuple[int, float]]]:
    """Return the stored curves by the keys of a dashboard."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows[rows["step"].notna()].to_dict("records"):
        split = row["labels"].get("split")
        key = LOSS if split is None else score(split, row["metric"])
        found.setdefault(key, []).append((int(row["step"]), row["value"]))
    return found


def check(run: ServedRun, rows: pd.DataFrame) -> None:
    """Check that a run has every row of its training, once, and is complete."""
    stored = curve(rows)
    assert stored.keys() >= {LOSS, "quality/validation_accuracy"}
    for key, points in stored.items():
        assert [(line["_step"], line[key]) for line in run.history if key in line] == points
        assert all(line["optimiser_step"] == line["_step"] for line in run.history)
    steps = [line["_step"] for line in run.history]
    assert steps == sorted({*steps}), "never a step twice"
    final = rows[rows["step"].isna()]
    tests = final[[labels.get("split") == "test" for labels in final["labels"]]]
    assert {"accuracy", "loss"} <= {*tests["metric"]}
    for metric, value in zip(tests["metric"], tests["value"], strict=True):
        assert run.summary[score("test", metric)] == value
    assert (run.summary["status"], run.exit_code) == ("complete", 0)
    assert (run.name, run.group, run.kind) == ("linear/listops/s0", "watched", "train")


def test_a_file_and_a_server_get_the_same_of_a_training(
    tmp_path: Path, server: WandbServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = train(tmp_path / "off", "wandb_offline")
    folder = tmp_path / "off/wandb"
    assert (
        f"{folder} has the runs of this sweep; `wandb sync` sends them" in capsys.readouterr().out
    )
    assert server.runs == {}
    (run,) = synced(tmp_path / "off")
    check(run, rows)
    told = {key for line in run.history for key in line}
    assert told >= {*TRAINING.values()} - {TRAINING["gpu_bytes"]}
    options = {k: v for k, v in run.config.items() if k[0] != "_"}
    assert (options["model"], options["optim__steps"]) == ("linear", 200)
    assert not any("." in key or isinstance(value, dict) for key, value in options.items())
    # what is complete is not written again
    before = [*folder.iterdir()]
    train(tmp_path / "off", "wandb_offline")
    assert [*folder.iterdir()] == before

    rows = train(tmp_path / "on", "wandb_online")
    assert "the server has the runs of this sweep, in the project lra" in capsys.readouterr().out
    (online,) = server.served()
    check(online, rows)
    assert online.id == run.id
    assert [*(tmp_path / "on/wandb").glob("offline-run-*")] == []


def test_a_killed_training_goes_on_as_a_second_run_of_its_group(tmp_path: Path) -> None:
    results, words = tmp_path / "r", (*WORDS, *LONG, "logger=wandb_offline")
    program = start(results, *words)
    until(lambda: [*results.glob("cells/*/*/checkpoint-*/resume.pt")])
    until(lambda: [*results.glob("wandb/offline-run-*/*")])
    program.send_signal(signal.SIGKILL)
    assert ended(program)[0] == -signal.SIGKILL
    (killed,) = (results / "wandb").glob("offline-run-*")
    rows = train(results, "wandb_offline", *LONG)
    (second,) = {*(results / "wandb").glob("offline-run-*")} - {killed}
    runs = {run.id: run for run in synced(results)}
    check(runs[second.name.rpartition("-")[2]], rows)
    assert killed.name.rpartition("-")[2] != second.name.rpartition("-")[2]
    assert {run.group for run in runs.values()} == {"watched"}


def test_a_stopped_training_goes_on_in_its_run_on_the_server(
    tmp_path: Path, server: WandbServer
) -> None:
    results = tmp_path / "r"
    program = start(results, *WORDS, *LONG, "logger=wandb_online")
    until(lambda: server.runs)
    until(lambda: [*results.glob("cells/*/*/checkpoint-*/resume.pt")])
    program.send_signal(signal.SIGTERM)
    assert ended(program)[0] == 128 + signal.SIGTERM
    (stopped,) = server.served()
    assert (stopped.exit_code, stopped.summary["status"]) == (255, "stopped")
    rows = train(results, "wandb_online", *LONG)
    (run,) = server.served()
    check(run, rows)
    assert run.history[: len(stopped.history)] == stopped.history


def test_a_training_that_fails_ends_as_failed(tmp_path: Path) -> None:
    words = ("model=fnet", "model.backbone.padding=masked", "logger=wandb_offline")
    main(["run", *WORDS[3:], *words, f"results={tmp_path / 'r'}"])
    (run,) = synced(tmp_path / "r")
    assert (run.exit_code, run.summary["status"]) == (1, "unsupported")
    assert "cannot exclude padding" in run.summary["reason"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("no key", "No API key configured"), ("refuses", "server did not answer"),
        ("unknown key", "did not recognize an account"), ("dies", ""),
    ],
)  # fmt: skip
def test_a_server_that_takes_nothing_costs_no_row(  # noqa: PLR0917
    fault: str, said: str, tmp_path: Path, server: WandbServer, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # A server that answers is waited for on a busy machine, too.
    monkeypatch.setattr(probes, "ACCOUNT_S", 3.0 if fault == "refuses" else 60.0)
    if fault == "no key":
        monkeypatch.delenv("WANDB_API_KEY")
    elif fault == "refuses":
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    server.known_key = fault != "unknown key"
    server.dies_after = "CreateRunFiles" if fault == "dies" else ""
    rows = train(tmp_path / "r", "wandb_online")
    assert set(rows["status"]) == {"ok"}
    told = "".join(capsys.readouterr())
    stored = curve(rows)[LOSS]
    if fault == "dies":  # W&B has some seconds to write its file: on a busy machine a part of it
        monkeypatch.undo()
        (_,) = (tmp_path / "r/wandb").glob("run-*")
        for run in synced(tmp_path / "r"):
            lines = [(line["_step"], line[LOSS]) for line in run.history if LOSS in line]
            assert lines == stored[: len(lines)]
        return
    (folder,) = (tmp_path / "r/wandb").glob("offline-run-*")
    assert f"runs are written into {tmp_path / 'r/wandb'}" in told
    assert said in told
    monkeypatch.undo()  # the account of before
    (run,) = synced(tmp_path / "r")
    assert stored == [(line["_step"], line[LOSS]) for line in run.history if LOSS in line]
    assert folder.name.endswith(run.id)


def test_tensorboard_gets_the_same_by_the_same_keys(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = train(tmp_path / "r", "tensorboard")
    (folder,) = {file.parent for file in (tmp_path / "r/tensorboard").rglob("events.*")}
    assert str(folder.relative_to(tmp_path / "r/tensorboard")).startswith(
        "watched/linear/listops/s0 "
    )
    read = EventAccumulator(str(folder))
    read.Reload()
    for key, points in curve(rows).items():
        events = read.Scalars(key)[: len(points)]  # behind which is the final value
        assert [event.step for event in events] == [step for step, _ in points]
        wanted = pytest.approx([value for _, value in points], rel=1e-6)  # stored as float32
        assert [event.value for event in events] == wanted
    assert len(read.Scalars(TRAINING["loss"])) > 0
    assert "quality/test_accuracy" in read.Tags()["scalars"]
    options = read.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"optim__steps" in options


def test_tensorboard_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cell_list, "find_spec", lambda name: None)
    assert main(["run", *WORDS, "logger=tensorboard", f"results={tmp_path}"]) == 2
    assert "pip install 'lra[tensorboard]'" in capsys.readouterr().err


# ------------------------------------------------- what a dashboard may do: nothing to the cell

ROWS = [
    *(Measurement(metric="train_loss", value=4.0 - step, step=step) for step in (1, 2)),
    Measurement(metric="accuracy", value=0.5, labels={"split": "test"}),
]
STEP = Progress(unit="step", done=2, total=2, loss=1.0, step=TrainingStep(gradient_norm=2.0))
FAULTS = {
    "import": "raise ImportError('planted')",
    "exit": "raise SystemExit('planted')",
    "init": "def init(**_): raise RuntimeError('planted')",
    "init hangs": "def init(**_): time.sleep(600)",
    "log": "class Run(Run):\n    def log(self, *_, **__): raise RuntimeError('planted')",
    "finish": "class Run(Run):\n    def finish(self, **_): raise RuntimeError('planted')",
    "finish hangs": "class Run(Run):\n    def finish(self, **_): time.sleep(600)",
    "dies": "class Run(Run):\n    def finish(self, **_): os._exit(3)",
}
PLANTED = """\
import os, time
class Settings:
    model_fields = {}
    def __init__(self, **_): pass
class Run:
    starting_step, summary = 0, {}
    def log(self, *_, **__): pass
    def define_metric(self, *_, **__): pass
    def finish(self, **_): pass
def init(**_): return Run()
def teardown(): pass
"""


@cache
def planned() -> Sweep:
    return cell_list.build(entries([*WORDS, "logger=wandb_offline"]))


def logged(folder: Path, kind: str = "offline") -> LoggedCell:
    sweep = replace(planned(), root=folder)
    found = SweepLogger(sweep).of_cell(sweep.cells[0], lambda _: False)
    return replace(found, target=replace(found.target, kind=kind))


def say(cell: LoggedCell, send: Callable[[object], None]) -> None:
    """Be a training, as far as it is heard."""
    with logging_cell(cell, send) as tell, listen(tell, log=None):
        for message in (ROWS[0], STEP, *ROWS[1:]):
            tell(message)
        time.sleep(1.0)  # or it would end before its dashboard has failed


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_dashboard_does_every_row_arrives(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted/wandb.py").write_text(f"{PLANTED}\n{FAULTS[fault]}\n")
    monkeypatch.syspath_prepend(tmp_path / "planted")
    heard: list[Any] = []
    begun = time.monotonic()
    # the limit of time is shorter than the wait for a dashboard: that does not count
    ending = isolate.run(say, logged(tmp_path), on_message=heard.append, seconds=5.0)
    assert (ending.status, ending.reason) == (Status.ok, "")
    assert [each for each in heard if isinstance(each, Measurement)] == ROWS
    warned = [each.text for each in heard if isinstance(each, Event) and "dashboard" in each.text]
    told = fault in ("import", "exit", "init", "log")
    assert (len(warned), "planted" in "".join(warned)) == (told, told)
    assert time.monotonic() - begun < cell_logger.CLOSED_S + 20


def test_a_folder_that_cannot_be_made_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("a file where a folder is wanted")
    heard: list[Any] = []
    ending = isolate.run(say, logged(tmp_path), on_message=heard.append)
    assert ending.status is Status.ok
    (warned,) = (each.text for each in heard if isinstance(each, Event))
    assert "this run is missing or incomplete in the dashboard" in warned
    assert [each for each in heard if isinstance(each, Measurement)] == ROWS


def weigh(cell: LoggedCell | None, send: Callable[[object], None]) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)[0]
    with logging_cell(cell, send) as tell:
        tell("a first word")
        send(resource.getrlimit(resource.RLIMIT_AS)[0] - before)


def test_a_limit_of_memory_leaves_room_for_the_dashboard(tmp_path: Path) -> None:
    for cell, room in ((None, 0), (logged(tmp_path, "tensorboard"), cell_logger.ROOM)):
        heard: list[Any] = []
        isolate.run(weigh, cell, on_message=heard.append, memory_bytes=2**30)
        assert heard == ["a first word", room]


def test_of_several_processes_the_first_writes(tmp_path: Path, monkeypatch) -> None:
    heard: list[object] = []
    monkeypatch.setenv("RANK", "1")
    with logging_cell(logged(tmp_path), heard.append) as tell:
        tell(ROWS[0])
    assert heard == ROWS[:1]
    assert not (tmp_path / "wandb").exists()


def test_numbers_are_those_of_a_step_that_are_known() -> None:
    found = cell_logger.numbers(STEP)
    assert found == {"train/step_loss": 1.0, "train/gradient_norm": 2.0}
    whole = TrainingStep(**dict.fromkeys(TrainingStep.__dataclass_fields__, 0))
    every = replace(STEP, learning_rate=0.0, left_s=0.0, step=whole)
    assert cell_logger.numbers(every).keys() == {*TRAINING.values()}
    assert math.isclose(sum(cell_logger.numbers(every).values()), 1.0)

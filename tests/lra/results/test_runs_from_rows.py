"""Runs that are made of stored rows: curves and baselines, read back by W&B's own tools."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lra.composition.hydra_entry import entries
from lra.reports.dashboard import runs
from lra.reports.dashboard.keys import LENGTH_AXIS, SPEEDUP
from lra.results.runs_from_rows import write_from_rows, write_runs
from lra.runners.records import Measurement, Status
from lra.runners.store import read_rows
from lra.sweep import cell_list
from lra.sweep.sweep import Sweep
from lra.sweep.sweep_logger import SweepLogger
from tests.reports.dashboard.wandb_server import ServedRun, synced

pytestmark = pytest.mark.usefixtures("no_account")
WORDS = ("-m", "task=listops", "task.source=sample", "optim.steps=40", "optim.warmup_steps=0",
         "sweep=quick")  # fmt: skip
PARTS = (
    ("runner=train", "model=linear"), ("runner=certify", "task=listops,retrieval"),
    ("runner=scaling", "model=linear,fnet", "runner.lengths=[64,128,256]",
     "runner.modes=[forward,step]"),
)  # fmt: skip
RATIO = {"labels": {"reference": "sdpa"}}


@cache
def planned() -> Sweep:
    """Plan cells of every kind."""
    words = [*WORDS, "logger=wandb_offline"]
    return cell_list.build([entry for part in PARTS for entry in entries([*words, *part])])


class Filled:
    """A store in which no value stands twice."""

    def __init__(self, folder: Path) -> None:
        self.sweep = replace(planned(), root=folder)
        self.count = 0
        for planned_cell in self.sweep.planned:
            self.sweep.store.record_in_sweep(self.sweep.name, planned_cell.cell.key)
            rows = self.rows(planned_cell.cell.columns)
            self.sweep.store.write(planned_cell.cell, rows, [], {})

    def value(self) -> float:
        self.count += 1
        return self.count / 2**14

    def rows(self, columns: Any) -> list[Measurement]:
        test = {"metric": "accuracy", "labels": {"split": "test"}}
        if columns["runner"] == "train":
            return [Measurement(value=self.value(), **test)]
        if columns["runner"] == "certify":
            names = ("baseline/majority", "baseline/root")
            return [Measurement(value=self.value(), model=name, **test) for name in names]
        if columns["length"] == 256 or columns["model"] == "fnet":
            why = {"status": Status.out_of_memory, "reason": "needs 5 GiB"}
            return [Measurement(metric="time", **why)]
        return [
            Measurement(metric="time", value=self.value()),
            Measurement(metric="peak_tensor_bytes", value=self.value()),
            Measurement(metric="time_ratio", value=self.value(), **RATIO),
        ]

    def write(self, keys: Sequence[str] | None = None, *, ran: bool = True, agent: str = "") -> str:
        """Write the runs of all cells, or of those of a shard."""
        cells = [cell for cell in self.sweep.cells if keys is None or cell.key in keys]
        return write_runs(SweepLogger(replace(self.sweep, cells=cells), agent), ran=ran)


def folders(results: Path) -> list[str]:
    return sorted(path.name for path in (results / "wandb").glob("*run-*"))


def logged(served: Sequence[ServedRun]) -> Counter[float]:
    """Return the values that runs hold; those of a curve stand in its summary, too."""
    found: Counter[float] = Counter()
    for run in served:
        history = [v for line in run.history for k, v in line.items()
                   if "/" in k and f"_{SPEEDUP}_" not in k]  # fmt: skip
        final = [v for k, v in run.summary.items() if k.startswith("quality/")]
        found.update(history or final)
    return found


def test_each_value_is_in_one_run_of_its_curve(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    store = Filled(tmp_path / "r")
    capfd.readouterr()
    sentence = store.write()
    assert sentence == f"{tmp_path}/r/wandb has the runs of this sweep; `wandb sync` sends them"
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "r/wandb/log.txt").exists(), "nothing was complained of"
    for name in ("WANDB_MODE", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name)
    served = synced(tmp_path / "r")
    linear, fnet, baselines = (
        next(run for run in served if run.name == name)
        for name in ("linear/listops/s0/64-256", "fnet/listops/s0/64-256", "baselines/2 tasks/s0")
    )
    assert len(served) == 3, "trainings write their own"
    assert {run.group for run in served} == {"quick"}
    rows = read_rows(tmp_path / "r")
    good = rows[(rows["status"] == "ok") & (rows["runner"] != "train")]
    assert logged(served) == Counter(good["value"])

    assert linear.values(LENGTH_AXIS) == [64, 128]
    assert {"speed/forward_time", "speed/step_time", "memory/step_peak_tensor_bytes",
            "speed/step_speedup_against_sdpa"} <= linear.history[0].keys()  # fmt: skip
    assert (linear.config["sequence_length"], linear.config["longest_length"]) == (None, 256)
    assert linear.config["model__mixer__chunk"] == 64  # what its cells agree on, flat
    assert linear.summary["failed/at_256_step"] == "out_of_memory: needs 5 GiB"
    assert (linear.summary["failed_at_length"], linear.summary["status"]) == (256, "incomplete")
    assert [run.exit_code for run in (linear, fnet, baselines)] == [0, 1, 0]
    assert baselines.config["model"] == "baselines"
    assert "quality/test_accuracy/retrieval_baseline/root" in baselines.summary
    # written again they are the same runs, which take the place of those before
    before = folders(tmp_path / "r")
    assert store.write(ran=False) == "nothing is written, because every run was finished before"
    assert folders(tmp_path / "r") == before
    store.write()
    ids = Counter(name.rpartition("-")[2] for name in folders(tmp_path / "r"))
    assert ids == Counter({run.id: 2 for run in served})


def test_parts_of_a_curve_are_runs_of_their_own(tmp_path: Path) -> None:
    store = Filled(tmp_path / "r")
    keys = [
        c.key
        for c in store.sweep.cells
        if c.columns["model"] == "linear" and c.columns["runner"] == "scaling"
    ]
    store.write(keys[::2])
    store.write(keys[1::2])
    assert len({name.rpartition("-")[2] for name in folders(tmp_path / "r")}) == 2


def test_an_agent_gets_the_run_of_a_complete_training(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep7")
    monkeypatch.setenv("WANDB_RUN_ID", "run1")
    store = Filled(tmp_path / "r")
    (training,) = (c.key for c in store.sweep.cells if c.columns["runner"] == "train")
    store.write([training], ran=False, agent="run1")
    (run,) = synced(tmp_path / "r")
    assert (run.id, run.name) == ("run1", "linear/listops/s0")
    assert run.summary["quality/test_accuracy"] > 0
    assert store.write([training], ran=True, agent="run1").startswith(f"{tmp_path}")
    assert len(folders(tmp_path / "r")) == 1, "the training has just written it"


def test_a_server_that_dies_at_the_end_of_a_run_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[str, str]] = []

    class Dying:
        def __init__(self, target: Any, run: str, *_: object, **__: object) -> None:
            self.told = (target.kind, run)

        def log(self, *_: object) -> None: ...

        def end(self, *_: object) -> None:
            ended.append(self.told)
            if self.told[0] == "online":
                raise TimeoutError("no answer")

    monkeypatch.setattr(runs, "WandbRun", Dying)
    monkeypatch.setattr(runs.Runs, "close", lambda _: None)
    store = Filled(tmp_path / "r")
    target = SweepLogger(store.sweep).target
    cells = [(c, None) for c in store.sweep.cells if c.columns["runner"] == "scaling"]
    said: list[Any] = []
    write_from_rows(
        {"target": replace(target, kind="online"), "root": tmp_path / "r", "cells": cells},
        said.append,
    )
    assert [kind for kind, _ in ended] == ["online", "offline"]
    assert len({run for _, run in ended}) == 2
    assert [each.text for each in said] == [
        f"W&B: no answer; runs are written to files in {target.folder}"
    ]


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    store = Filled(tmp_path / "r")
    (tmp_path / "r/wandb").write_text("a file where W&B wants its folder")
    assert "; some runs are missing: " in store.write()

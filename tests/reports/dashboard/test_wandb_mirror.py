"""Runs are written offline by the real wandb and read back from its log."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from offline_runs import Run

from reports.dashboard.mirror import MirrorMode, MirrorResult, mirror
from reports.dashboard.plan import plan_runs
from reports.rows import NoRows

CONFIG = {"model": {"name": "linear", "mixer": {"chunk": 128}}, "length": 256}


@pytest.fixture
def rows(make: SimpleNamespace) -> pd.DataFrame:
    cell = {"runner": "scaling", "mode": "step", "length": 1024}
    return make.frame(
        make.accuracy("linear", 0, 0.3),
        make.row("train_loss", 2.0, step=10),
        make.row("train_loss", 1.5, step=20),
        make.row("accuracy", 0.25, step=20, labels={"split": "validation"}),
        *make.timing("linear", 512, 0.02, references={"sdpa": 0.01}, cell="b"),
        *make.timing("linear", 256, 0.01, references={"sdpa": 0.02}, cell="a"),
        make.failed("time", "linear", "out_of_memory", "needs 5 GiB", cell="c", **cell),
        make.baseline("majority", 0.18, "The commonest class."),
    )


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))


def send(rows: pd.DataFrame, folder: Path, **options: Any) -> MirrorResult:
    told: dict[str, Any] = {
        "sweep": "quick",
        "cells": {"a": {"config": CONFIG}, "b": {"config": CONFIG | {"length": 512}}},
        "mode": MirrorMode.offline,
        "folder": folder,
        "project": "lra",
    }
    return mirror(rows, options.pop("files", []), **(told | options))


@pytest.fixture
def png(tmp_path: Path) -> Path:
    from matplotlib.figure import Figure

    path = tmp_path / "time-step.png"
    Figure(figsize=(1, 1)).savefig(path)
    path.with_suffix(".csv").write_text("model,value\nlinear,1\n")
    return path


def test_offline_runs_read_back(rows: pd.DataFrame, tmp_path: Path, png: Path) -> None:
    table = tmp_path / "crossover.csv"
    table.write_text("model,column,value\nlinear,sdpa,\nperformer,sdpa,724.5\na,b,inf\n")
    files = [png, png.with_suffix(".csv"), table]
    result = send(rows, tmp_path / "wandb", files=files)
    runs = {(r.run.job_type, r.run.display_name): r for r in map(Run, result.paths)}
    assert set(runs) == {
        ("certify", "baselines/listops/s0"),
        ("report", "report/quick"),
        ("scaling", "linear/listops/s0/256-1024"),
        ("train", "linear/listops/s0"),
    }
    assert {r.run.run_group for r in runs.values()} == {"quick"}
    assert {r.run.project for r in runs.values()} == {"lra"}
    assert result.sentence == (
        f"4 W&B runs are offline under {tmp_path / 'wandb'}; `wandb sync` sends them."
    )

    scaling = runs["scaling", "linear/listops/s0/256-1024"]
    assert list(scaling.run.tags) == ["linear", "listops", "cpu", "quick"]
    assert scaling.config["model__mixer__chunk"] == 128  # what its cells agree on, flat
    assert scaling.config["precision"] == "float32"
    assert (scaling.config["model"], scaling.config["seed"]) == ("linear", 0)
    assert (scaling.config["sequence_length"], scaling.config["longest_length"]) == (None, 1024)
    assert sorted(scaling.config["cells"]) == ["a", "b", "c"]
    assert scaling.axes == {
        "speed/*": "sequence_length", "memory/*": "sequence_length",
        "train/*": "optimiser_step", "quality/*": "optimiser_step",
    }  # fmt: skip
    assert scaling.values("sequence_length") == [256, 512]
    assert scaling.values("speed/step_time") == [0.01, 0.02]
    assert scaling.values("speed/step_time_ratio_against_sdpa") == [0.5, 2.0]
    assert scaling.values("memory/step_peak_tensor_bytes") == [2.0**24, 2.0**24]
    assert scaling.summary["at_512/speed_step_time"] == 0.02
    assert scaling.summary["failed/at_1024_step"] == "out_of_memory: needs 5 GiB"
    assert scaling.summary["failed_at_length"] == 1024
    assert scaling.summary["status"] == "incomplete"
    assert scaling.values("not_measured._type") == ["table-file"]

    train = runs["train", "linear/listops/s0"]
    assert train.values("optimiser_step") == [10, 20]
    assert train.values("train/loss") == [2.0, 1.5]
    assert train.values("quality/validation_accuracy") == [0.25]
    assert train.summary["quality/test_accuracy"] == 0.3
    assert train.summary["status"] == "complete"

    report = runs["report", "report/quick"]
    logged = json.dumps(report.history)
    assert "tables/crossover" in logged
    assert "figures/time-step" in logged
    assert "tables/time-step" not in logged  # numbers of a figure are no results table
    # beside ours stands one that W&B makes of each table
    assert {n for n in report.artifacts if not n.startswith("run-")} == {
        "rows-quick", "report-quick",
    }  # fmt: skip
    assert report.artifacts["rows-quick"] == ["quick.jsonl"]
    assert set(report.artifacts["report-quick"]) == {
        "time-step.png",
        "time-step.csv",
        "crossover.csv",
    }
    media = {p.name.split("_")[0] for p in (report.folder / "files" / "media").rglob("*.*")}
    assert {"time-step", "crossover"} <= media
    (stored,) = (report.folder / "files" / "media" / "table" / "tables").glob("crossover*")
    assert json.loads(stored.read_text())["data"] == [
        ["linear", "sdpa", None], ["performer", "sdpa", 724.5], ["a", "b", "inf"],
    ]  # fmt: skip
    (kept,) = (tmp_path / "wandb/rows").glob("*/quick.jsonl")
    sent = [json.loads(x) for x in kept.read_text().splitlines()]
    assert len(sent) == len(rows)
    assert sent[0]["labels"] == {"split": "test", "examples": "2000"}
    assert sent[1]["seed"] == 0


def test_nothing_is_written_elsewhere_and_no_process_stays(
    rows: pd.DataFrame,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    result = send(rows, tmp_path / "out")
    assert len({p.name for p in result.paths}) == 4  # all there, and none under a foreign name
    assert list((tmp_path / "home").iterdir()) == []
    assert {p.name for p in tmp_path.iterdir()} == {"home", "out"}
    assert not (tmp_path / "out" / "tmp").exists()
    assert capfd.readouterr() == ("", "")
    inside = str(tmp_path / "out").encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert inside not in entry.read_bytes()
        except OSError:
            continue  # ended, or not ours


def test_importing_the_mirror_does_not_import_wandb() -> None:
    code = "import sys, reports.dashboard.mirror; assert not {'wandb', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_the_same_content_is_written_once_and_a_change_replaces_it(
    rows: pd.DataFrame, make: SimpleNamespace, tmp_path: Path
) -> None:
    first = send(rows, tmp_path / "wandb")
    times = [p.stat().st_mtime_ns for p in first.paths]
    again = send(rows, tmp_path / "wandb")
    assert again == first
    assert [p.stat().st_mtime_ns for p in again.paths] == times

    more = rows.copy()
    more.loc[more["metric"] == "accuracy", "value"] = 0.5
    changed = send(more, tmp_path / "wandb")
    kept = set(changed.paths) & set(first.paths)
    assert len(kept) == 1  # the timing run is untouched
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert sorted(runs) == sorted(changed.paths)
    assert {p.name.rsplit("-", 1)[1] for p in first.paths} == {
        p.name.rsplit("-", 1)[1] for p in changed.paths
    }


def test_online_without_a_key_goes_offline_and_says_so(rows: pd.DataFrame, tmp_path: Path) -> None:
    result = send(rows, tmp_path / "wandb", mode=MirrorMode.online)
    assert len(result.paths) == 4
    assert all(p.name.startswith("offline-run-") for p in result.paths)
    assert "offline under" in result.sentence
    assert "No API key configured" in result.sentence


@pytest.mark.slow
def test_online_without_an_answer_goes_offline(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    result = send(rows, tmp_path / "wandb", mode=MirrorMode.online, init_timeout_s=3.0)
    assert len(result.paths) == 4
    assert "because going online failed" in result.sentence


def test_a_child_that_hangs_is_ended(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = tmp_path / "stub"
    stub.mkdir()
    (stub / "python").write_text("#!/bin/sh\nsleep 600 &\nsleep 600\n")
    (stub / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stub / "python"))
    result = send(rows, tmp_path / "wandb", init_timeout_s=0.3, seconds_per_run=0.05)
    assert result.paths == []
    assert result.sentence == "W&B got nothing: the process that writes them ended early."


def test_an_unwritable_run_folder_is_a_sentence(rows: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "wandb").write_text("a file where W&B wants its folder")
    result = send(rows, tmp_path / "out")
    assert result.paths == []
    assert result.sentence.startswith("W&B got nothing: ")


def test_disabled_does_nothing(rows: pd.DataFrame, tmp_path: Path) -> None:
    result = send(rows, tmp_path / "wandb", mode=MirrorMode.disabled)
    assert result == MirrorResult([], "W&B is disabled.")
    assert not (tmp_path / "wandb").exists()


def test_no_rows_are_an_error(make: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(NoRows):
        send(make.frame(), tmp_path / "wandb")


def test_run_ids_are_stable_and_tell_sweeps_seeds_and_runners_apart(
    rows: pd.DataFrame, make: SimpleNamespace
) -> None:
    def ids(frame: pd.DataFrame, sweep: str) -> list[str]:
        return [p.id for p in plan_runs(frame, sweep=sweep, cells={})]

    assert ids(rows, "quick") == ids(rows, "quick")
    assert len(set(ids(rows, "quick"))) == 3
    assert not set(ids(rows, "quick")) & set(ids(rows, "other"))
    other = rows.assign(seed=1, cell="seed-1-" + rows["cell"])  # a seed is part of a cell's key
    assert not set(ids(other, "quick")) & set(ids(rows, "quick"))


def test_parts_of_one_cell_have_names_of_their_own(make: SimpleNamespace) -> None:
    def longer(factor: str, value: float) -> dict[str, Any]:
        return make.accuracy(
            "linear", 0, value, labels={"factor": factor}, runner="extrapolate", mode="extrapolate"
        )

    def span(value: float, **labels: str) -> dict[str, Any]:
        told = {"layer": "all", "head": "all", "split": "validation"} | labels
        return make.row("span", value, labels=told, runner="span", mode="span")

    frame = make.frame(
        longer("1", 0.5), longer("2", 0.4), span(3.0, measure="attention", layer="0", head="1"),
        span(4.0, measure="gradient"),
    )  # fmt: skip
    plans = {p.job_type: p.summary for p in plan_runs(frame, sweep="s", cells={})}
    assert plans["extrapolate"]["quality/test_accuracy/factor_1"] == 0.5
    assert plans["extrapolate"]["quality/test_accuracy/factor_2"] == 0.4
    assert plans["span"]["span/measure_attention/layer_0/head_1"] == 3.0
    assert plans["span"]["span/measure_gradient"] == 4.0

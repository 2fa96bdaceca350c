"""What is stored reaches W&B through the writer of running cells: real files, read back."""

import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fuzz import cases

from lra.composition.hydra_entry import entries
from lra.reports.dashboard import live as live_reports
from lra.reports.dashboard.keys import LENGTH_AXIS, SPEEDUP, STEP_AXIS
from lra.results import replay as replay_module
from lra.results.replay import replay
from lra.results.stored import stored
from lra.runners.records import Measurement, Status
from lra.sweep import cell_list, live as live_module
from lra.sweep.live import LiveSweep
from lra.sweep.sweep import Sweep
from tests.reports.dashboard.offline_runs import Run

WORDS = ("-m", "task=listops", "task.source=sample", "optim.steps=40", "optim.warmup_steps=0",
         "sweep=quick", "runner.lengths=[64,128,256]", "runner.modes=[forward,step]")  # fmt: skip
PARTS = (
    ("runner=train", "model=linear,fnet"), ("runner=scaling", "model=linear"),
    ("runner=certify", "task=listops"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@cache
def planned(*words: str) -> Sweep:
    """Plan cells of every kind."""
    found = []
    for part in PARTS:
        lengths = () if part[0] == "runner=scaling" else tuple(
            word for word in WORDS if word.startswith(("runner.lengths", "runner.modes"))
        )  # fmt: skip
        chosen = [word for word in WORDS if word not in lengths]
        found += entries([*chosen, *part, *words])
    return cell_list.build(found)


class Filled:
    """A store in which no value stands twice."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.sweep = replace(planned(*words), root=folder / "results")
        self.count = 0
        self.folder = self.sweep.root / "wandb"

    def value(self) -> float:
        self.count += 1
        return self.count / 2**14

    def write(self, keys: Sequence[str] | None = None) -> None:
        """Store rows of these cells, which differ from those that were there."""
        for planned in self.sweep.planned:
            cell = planned.cell
            if keys is None or cell.key in keys:
                self.sweep.store.record_in_sweep(self.sweep.name, cell.key)
                self.sweep.store.write(cell, self._rows(str(cell.columns["runner"]), cell), [], {})

    def _rows(self, runner: str, cell: Any) -> list[Measurement]:
        if runner == "train":
            rows = [
                Measurement(metric="train_loss", value=self.value(), step=step) for step in (10, 20)
            ]
            test = Measurement(metric="accuracy", value=self.value(), labels={"split": "test"})
            return [*rows, test]
        if runner == "certify":
            test = {"metric": "accuracy", "labels": {"split": "test"}}
            names = ("baseline/majority", "baseline/root")
            return [Measurement(value=self.value(), model=name, **test) for name in names]
        if cell.columns["length"] == 256:
            why = {"status": Status.out_of_memory, "reason": "needs 5 GiB"}
            return [Measurement(metric="time", **why)]
        ratio = {"labels": {"reference": "sdpa"}}
        return [
            Measurement(metric="time", value=self.value()),
            Measurement(metric="peak_tensor_bytes", value=self.value()),
            Measurement(metric="time_ratio", value=self.value(), **ratio),
        ]

    @property
    def rows(self) -> pd.DataFrame:
        return stored(self.sweep.root, self.sweep.name)[0]

    def send(self, files: Sequence[Path] = (), own: Sequence[str] | None = None) -> str:
        """Replay all cells, or those of a shard."""
        sweep = self.sweep
        if own is not None:
            sweep = replace(sweep, cells=[cell for cell in sweep.cells if cell.key in own])
        return replay(sweep, None, self.rows, files)

    def there(self) -> dict[Path, int]:
        """Each run's folder, and when its file was written."""
        return {
            path: next(path.glob("*.wandb")).stat().st_mtime_ns
            for path in sorted(self.folder.glob("offline-run-*"))
        }


def expected(rows: pd.DataFrame) -> Counter[tuple[float | None, float]]:
    """Place on the axis and value of each row that has one."""
    found: Counter[tuple[float | None, float]] = Counter()
    timed = set(rows[rows["metric"] == "time"]["cell"])
    for row in rows[rows["status"] == "ok"].to_dict("records"):
        place = row["length"] if row["cell"] in timed else row["step"]
        found[None if pd.isna(place) else float(place), float(row["value"])] += 1
    return found


def logged(runs: Sequence[Run]) -> Counter[tuple[float | None, float]]:
    """What runs hold, histories first: a summary repeats the last value of each key."""
    found: Counter[tuple[float | None, float]] = Counter()
    for run in runs:
        if run.run.job_type == "report":
            continue
        last = {value for line in run.history for value in line.values()
                if isinstance(value, float)}  # fmt: skip
        for line in run.history:
            place = line.get(LENGTH_AXIS, line.get(STEP_AXIS))
            for key, value in line.items():
                derived = f"_{SPEEDUP}_against_" in key  # of a ratio, which is there as well
                if "/" in key and not derived and not key.startswith("not_measured"):
                    found[None if place is None else float(place), value] += 1
        for key, value in run.summary.items():
            special = key.startswith(("at_", "failed", "not_measured", "_"))
            if not special and isinstance(value, float) and value not in last:
                found[None, value] += 1
    return found


def kinds(runs: Mapping[Path, int]) -> dict[tuple[str, str], Run]:
    return {(run.run.job_type, run.run.display_name): run for run in map(Run, runs)}


@pytest.fixture
def png(tmp_path: Path) -> Path:
    from matplotlib.figure import Figure

    path = tmp_path / "time-step.png"
    Figure(figsize=(1, 1)).savefig(path)
    path.with_suffix(".csv").write_text("model,value\nlinear,1\n")
    return path


def test_offline_runs_read_back(
    tmp_path: Path, png: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    store = Filled(tmp_path)
    store.write()
    table = tmp_path / "crossover.csv"
    table.write_text("model,column,value\nlinear,sdpa,\nperformer,sdpa,724.5\na,b,inf\n")
    capfd.readouterr()
    sentence = store.send([png, png.with_suffix(".csv"), table])
    assert sentence == f"5 W&B runs are offline under {store.folder}; `wandb sync` sends them."
    runs = kinds(store.there())
    assert set(runs) == {
        ("certify", "baselines/listops/s0"), ("report", "report/quick"),
        ("scaling", "linear/listops/s0/64-256"), ("train", "linear/listops/s0"),
        ("train", "fnet/listops/s0"),
    }  # fmt: skip
    assert {run.run.run_group for run in runs.values()} == {"quick"}
    assert logged([*runs.values()]) == expected(store.rows)

    scaling = runs["scaling", "linear/listops/s0/64-256"]
    assert scaling.config["model__mixer__chunk"] == 64  # what its cells agree on, flat
    assert (scaling.config["sequence_length"], scaling.config["longest_length"]) == (None, 256)
    assert scaling.axes["speed/*"] == "sequence_length"
    assert scaling.summary["failed/at_256_step"] == "out_of_memory: needs 5 GiB"
    assert (scaling.summary["failed_at_length"], scaling.summary["status"]) == (256, "incomplete")
    assert scaling.values("not_measured._type") == ["table-file"]
    assert runs["train", "linear/listops/s0"].values("optimiser_step") == [10, 20]

    report = runs["report", "report/quick"]
    told = json.dumps(report.history)
    assert "tables/crossover" in told
    assert "figures/time-step" in told
    assert "tables/time-step" not in told  # numbers of a figure are no results table
    assert {n for n in report.artifacts if not n.startswith("run-")} == {
        "rows-quick", "report-quick",
    }  # fmt: skip
    assert report.artifacts["rows-quick"] == ["quick.jsonl"]
    assert set(report.artifacts["report-quick"]) == {
        "time-step.png", "time-step.csv", "crossover.csv",
    }  # fmt: skip
    (kept,) = store.folder.glob("rows/*/quick.jsonl")
    assert len(kept.read_text().splitlines()) == len(store.rows)
    (file,) = (report.folder / "files/media/table/tables").glob("crossover*")
    assert json.loads(file.read_text())["data"] == [
        ["linear", "sdpa", None], ["performer", "sdpa", 724.5], ["a", "b", "inf"],
    ]  # fmt: skip
    # nothing is written elsewhere, nothing said, and no process stays
    assert list((tmp_path / "home").iterdir()) == []
    assert not (tmp_path / "elsewhere").exists()
    assert capfd.readouterr() == ("", "")
    inside = str(store.folder).encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert inside not in entry.read_bytes()
        except OSError:
            continue  # ended, or not ours


@pytest.mark.parametrize(("fault", "processes"), [(None, 1), ("killed", 2), ("lost", 2)])
def test_one_process_writes_the_runs_of_cells_and_the_report(
    fault: str | None, processes: int, tmp_path: Path, png: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    process = live_reports.WritingProcess
    monkeypatch.setattr(
        live_reports,
        "WritingProcess",
        lambda *args, **how: (started.append(args), process(*args, **how))[1],
    )
    store = Filled(tmp_path)
    store.write()
    live = LiveSweep(store.sweep, store.sweep.cells)
    lost = store.sweep.cells[0].key if fault == "lost" else ""
    for cell in store.sweep.cells:
        if cell.key != lost:
            live.ended(cell, Status.ok, wait=True)
    live.settle()
    assert live.goes_on
    assert live.runs is not None
    if fault == "killed":
        os.killpg(live.runs.process_group, signal.SIGKILL)
    sentence = replay(store.sweep, live, store.rows, [png])
    assert sentence.startswith(f"5 W&B runs are offline under {store.folder}; ")
    assert "could not" not in sentence
    assert len(started) == processes
    assert not live.goes_on
    runs = kinds(store.there())
    assert logged([*runs.values()]) == expected(store.rows)
    report = runs["report", "report/quick"]
    assert report.artifacts["report-quick"] == ["time-step.png"]
    (staged,) = (path for path in (store.folder / "data").iterdir())
    assert staged.name == report.run.run_id, "what is to be sent with it, and nothing else"
    assert [path for path in staged.rglob("*") if path.is_file()]


def test_the_same_is_written_once_and_a_change_replaces_it(tmp_path: Path) -> None:
    store = Filled(tmp_path)
    store.write()
    first = store.send()
    before = store.there()
    assert store.send() == first
    assert store.there() == before
    changed = [p.cell.key for p in store.sweep.planned if p.cell.columns["model"] == "fnet"]
    curve = [p.cell.key for p in store.sweep.planned if p.cell.columns["length"] == 64][:1]
    store.write([*changed, *curve])
    store.send()
    after = store.there()
    assert logged([Run(path) for path in after]) == expected(store.rows)
    assert len(after) == len(before)
    assert len(before.items() & after.items()) == 2  # the other training, and the baselines


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(cases(1)))
def test_any_parts_in_any_order_put_each_row_into_one_run(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    store = Filled(tmp_path)
    keys = [planned.cell.key for planned in store.sweep.planned]
    done: set[str] = set()
    for _ in range(2):
        own = draw.sample(keys, draw.randint(1, len(keys)))
        store.write([key for key in own if key not in done or draw.random() < 0.5])
        done |= set(own)
        store.send(own=own)
    store.send()
    runs = [Run(path) for path in store.there()]
    assert logged(runs) == expected(store.rows)
    reports = [run for run in runs if run.run.job_type == "report"]
    assert [sorted(run.config["cells"]) for run in reports] == [sorted(done)]


def test_two_shards_in_two_stores_have_runs_of_their_own(tmp_path: Path) -> None:
    found = []
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        store = Filled(tmp_path / str(number))
        keys = sorted(planned.cell.key for planned in store.sweep.planned)[number::2]
        store.count = 100 * number
        store.write(keys)
        store.send(own=keys)
        found += [*store.there()]
    ids = [path.name.rsplit("-", 1)[1] for path in found]
    assert len(set(ids)) == len(ids)  # a server keeps one run of each id


@pytest.mark.parametrize(
    ("key", "said"), [("", "No API key configured"), ("a" * 40, "because going online failed")]
)
def test_online_without_a_key_or_an_answer_goes_offline_and_says_so(
    key: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if key:
        monkeypatch.setenv("WANDB_API_KEY", key)
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    store = Filled(tmp_path, "logger=wandb_online")
    store.write()
    sentence = store.send()
    assert len(store.there()) == 5
    assert "offline under" in sentence
    assert said in sentence


def test_a_process_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nsleep 600 &\nsleep 600\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(live_module, "CLOSED_S", 0.2)
    monkeypatch.setattr(replay_module, "RUN_S", 0.05)
    store = Filled(tmp_path)
    store.write()
    sentence = store.send()
    assert sentence.startswith("W&B got nothing: it took longer than ")
    assert not store.there()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    store = Filled(tmp_path)
    store.write()
    store.folder.write_text("a file where W&B wants its folder")
    assert store.send().startswith("W&B got nothing: ")

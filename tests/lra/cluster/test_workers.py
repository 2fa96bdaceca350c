"""Workers of a stored plan: the rows of `lra run`, whoever is killed; plans that are refused."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from lra.cli import main
from lra.cluster import fork_workers, planning
from lra.cluster.claiming import Claiming
from lra.cluster.engine import AGAIN, Resources, WorkerGroup
from lra.cluster.local import LocalEngine
from lra.cluster.plan import HEAD, StoredPlan, plan_folder
from lra.cluster.submissions import jobs_of
from lra.runners.measurement.hardware import cpu_name
from lra.runners.storage.seals import DIGEST, seal
from lra.runners.store import Store, read_rows
from tests.lra.cluster.shared_sweeps import ended, until, work
from tests.lra.sweep.small_sweeps import BRIEF, TINY, run, settled

pytestmark = pytest.mark.usefixtures("shared_cache")
SWEEP = ("model=linear,identity", "seed=0,1", "model.backbone.depth=1", "model.backbone.width=16")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Callable[..., StoredPlan]:
    """Submit words to an engine that starts nothing, and return the plan."""

    def submitted(results: Path, *words: str) -> StoredPlan:
        with monkeypatch.context() as patch:
            patch.setattr(LocalEngine, "submit", lambda *_: [])
            assert main(["submit", *TINY, f"results={results}", "sweep=some", *words]) == 0
        return StoredPlan(plan_folder(results, "some"))

    return submitted


def test_workers_of_which_one_is_killed_make_the_rows_of_one_sweep(
    tmp_path: Path, plan: Callable[..., StoredPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    assert run(alone, "-m", *SWEEP) == 0
    plan(shared, *SWEEP, "report=true")
    assert main(["watch", "some", "--results", str(shared), "--json"]) == 3
    first = work(shared, "--name", "victim")
    until(lambda: Store(shared).claims())
    assert {holder.worker for holder in Store(shared).claims().values()} == {"victim"}
    first.send_signal(signal.SIGKILL)
    assert ended(first)[0] == -signal.SIGKILL
    others = work(shared, "--workers", "2")
    assert ended(others) == (0, b"2 workers begin\n2 workers ended\n")
    pd.testing.assert_frame_equal(settled(shared), settled(alone))
    assert len([*shared.glob("cells/*/*/rows-*.jsonl")]) == len(StoredPlan(
        plan_folder(shared, "some")).entries)  # fmt: skip
    assert Store(shared).claims() == {}
    logs = {path.name: path.read_text() for path in shared.glob("plans/some/logs/*.log")}
    assert len(logs) == 3
    assert all(text.strip() for text in logs.values())
    told = "".join(logs.values())
    assert told.count("this worker writes the report") == 1
    assert told.count("some has ended, 4 runs: 4 ok") == 2
    assert (shared / "reports/some/report.md").is_file()
    capsys.readouterr()
    assert main(["watch", "some", "--results", str(shared), "--json"]) == 0
    standing = json.loads(capsys.readouterr().out)
    assert (standing["done"], standing["left"], standing["running"]) == (4, 0, [])


@pytest.mark.parametrize("verb", ["run", "submit", "work"])
def test_a_claim_of_a_process_killed_after_the_rows_is_cleared(
    verb: str, tmp_path: Path, plan: Callable[..., StoredPlan]
) -> None:
    words = ("model=identity", "seed=0")
    planned = plan(tmp_path, *words)
    key = planned.entries[0].key
    planned.close()
    assert ended(work(tmp_path))[0] == 0
    with subprocess.Popen([sys.executable, "-c", ""]) as killed:
        pass
    claim = tmp_path / "claims" / key
    claim.write_text(json.dumps({"host": socket.gethostname(), "pid": killed.pid}))
    if verb == "work":
        assert ended(work(tmp_path))[0] == 0
    else:
        assert main([verb, *TINY, f"results={tmp_path}", "sweep=some", *words]) == 0
    assert not claim.exists()


def test_rows_name_the_device_of_the_worker_and_not_that_of_the_plan(
    plan: Callable[..., StoredPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lra.sweep.cells.device_name", lambda *_: "a login node")
        planned = plan(tmp_path, "model=identity", *SWEEP[2:])
    assert planned.cell(0).columns["device"] == "a login node"
    assert ended(work(tmp_path))[0] == 0
    assert {*read_rows(tmp_path)["device"]} == {cpu_name()}
    (log,) = (path.read_text() for path in tmp_path.glob("plans/some/logs/*.log"))
    assert "some has ended, 1 run: 1 ok" in log
    assert "writ" not in log, "neither a report nor runs were wanted"


def test_a_stopped_submission_goes_on_and_gains_cells(
    tmp_path: Path, plan: Callable[..., StoredPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("model=linear", "seed=0", "optim.steps=60", "runner.checkpoint_every_s=0.05")
    given = [*TINY, f"results={tmp_path}", "sweep=some", *words, "cluster.workers=1"]
    assert main(["submit", *given]) == 0
    (note,) = (json.loads(p.read_bytes()) for p in tmp_path.glob("plans/some/submissions/*"))
    engine = LocalEngine()
    until(lambda: [*tmp_path.glob("cells/*/*/checkpoint-*/*")])
    with pytest.MonkeyPatch.context() as patch:  # the machine was given another name meanwhile
        patch.setattr("socket.gethostname", lambda: "renamed")
        assert {each.state for each in engine.states([jobs_of(note)]).values()} == {"running"}
        assert main(["submit", "--stop", "some", "--results", str(tmp_path)]) == 0
    until(lambda: {each.state for each in engine.states([jobs_of(note)]).values()} == {"ended"})
    logs = [path.read_text() for path in tmp_path.glob("plans/some/logs/*.log")]
    assert all("the worker ends with 143" in text for text in logs)
    assert Store(tmp_path).claims() == {}
    assert main(["watch", "some", "--results", str(tmp_path), "--once"]) == 3
    more = plan(tmp_path, *words[:1], "seed=1", *words[2:])
    assert [more.cell(place).columns["seed"] for place in range(2)] == [1, 0]
    more.close()
    code, said = ended(work(tmp_path))
    assert code == 0
    assert b"resumed at step" in said
    assert {row["seed"] for row in settled(tmp_path).to_dict("records")} == {0, 1}


def test_a_worker_told_by_sigusr1_saves_and_gives_its_cell_back(
    tmp_path: Path, plan: Callable[..., StoredPlan]
) -> None:
    plan(tmp_path, "model=linear", "seed=0", "optim.steps=3000", "runner.checkpoint_every_s=1")
    worker = work(tmp_path, "--workers", "2")
    until(lambda: [*tmp_path.glob("cells/*/*/checkpoint-*/resume.pt")])
    (saved,) = tmp_path.glob("cells/*/*/checkpoint-*/resume.pt")
    before = saved.stat().st_mtime_ns
    worker.send_signal(signal.SIGUSR1)
    code, said = ended(worker)
    assert code == 128 + signal.SIGUSR1
    assert b"2 workers ended" in said
    assert saved.stat().st_mtime_ns > before
    assert Store(tmp_path).claims() == {}


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda head: {**head, "schema": 99}, "has schema 99, but this lra reads schema 2"),
        (lambda head: {**head, "bytes": head["bytes"] + 1}, "is damaged"),
        (
            lambda head: {**head, "sources": {**head["sources"], "models.mixer": "0" * 64}},
            r"code [0-9a-f]{12}, but here is .* code [0-9a-f]{12}; .*: models\.mixer\. This worker "
            r"ran nothing",
        ),
        (
            lambda head: {**head, "versions": {**head["versions"], "torch": "1.0"}},
            "was made with torch 1.0, but here is torch",
        ),
    ],
)
def test_a_plan_that_is_torn_or_of_other_code_is_refused(
    damage: Callable[[dict[str, object]], dict[str, object]],
    wanted: str,
    tmp_path: Path,
    plan: Callable[..., StoredPlan],
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = plan(tmp_path, "model=linear").folder
    head = json.loads((folder / HEAD).read_bytes())
    del head[DIGEST]
    (folder / HEAD).write_bytes(seal(damage(head)))
    assert main(["work", "some", "--results", str(tmp_path)]) == 2
    assert re.search(wanted, capsys.readouterr().err)
    assert not (tmp_path / "cells").exists()
    assert main(["work", "same", "--results", str(tmp_path)]) == 2
    assert "near matches: some" in capsys.readouterr().err


def test_lengths_and_trainings_come_in_order_and_classes_are_kept(
    tmp_path: Path, plan: Callable[..., StoredPlan]
) -> None:
    words = ("runner=scaling", "runner.lengths=[64,128,256]", "runner.modes=[forward]", *BRIEF)
    made = plan(tmp_path, "model=linear,softmax", *words)
    claiming = Claiming(made, Store(tmp_path), "one", None)
    cells = [made.cell(place) for place in claiming.possible()]
    assert sorted((c.columns["model"], c.columns["length"]) for c in cells) == [
        ("linear", 64), ("softmax", 64),
    ]  # fmt: skip
    claiming.over.add(next(claiming.possible()))
    assert sorted(made.cell(p).columns["length"] for p in claiming.possible()) == [64, 128]
    small = WorkerGroup(name="small", count=1, resources=Resources(cpus=0))
    assert [*Claiming(made, Store(tmp_path), "two", small).possible()] == []
    before = made.version
    merged = plan(tmp_path, "model=linear,softmax", *words)
    assert merged.version == before, "the same cells make the same files"
    stored = [record["key"] for record in planning.stored_records(merged)]
    assert stored == [entry.key for entry in made.entries]
    made.close()
    merged.close()


def test_a_cell_that_reads_the_clock_is_left_for_a_whole_job(
    tmp_path: Path, plan: Callable[..., StoredPlan]
) -> None:
    made = plan(tmp_path, "model=linear", "runner=scaling", "runner.lengths=[64]", *BRIEF)
    made.entries = [
        entry._replace(needs=replace(entry.needs, seconds=100.0)) for entry in made.entries
    ]
    claiming = Claiming(made, Store(tmp_path), "one", None, time.time() + 1000)
    places = [*claiming.possible()]
    assert places
    assert not claiming.short_of_time
    claiming.until = time.time() + 50
    assert [*claiming.possible()] == []
    assert claiming.short_of_time
    short = Claiming(made, Store(tmp_path), "two", None, time.time() + 50)
    assert [*short.possible()] == places, "no job has the time for it: it is tried"
    made.close()


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 0), 0), ((0, AGAIN), AGAIN), ((AGAIN, 2), 2), ((0, 137), 0)]
)
def test_forked_workers_end_as_the_engine_has_to_know(codes: tuple[int, ...], code: int) -> None:
    assert fork_workers.together(codes) == code

"""Plans, submissions and states that were damaged: said with the way out, or written again."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from lra.cli import main
from lra.cluster import submissions
from lra.cluster.cells import WorkerOptions
from lra.cluster.claiming import Claiming
from lra.cluster.engine import engine_of
from lra.cluster.local import LocalEngine
from lra.cluster.plan import HEAD, BadPlan, StoredPlan, plan_folder
from lra.cluster.state import WorkerState, read_states
from lra.cluster.worker import Worker
from lra.runners.storage.seals import seal
from lra.runners.store import Store
from tests.lra import damage
from tests.lra.sweep.small_sweeps import TINY

WAYS = [way for way in (*damage.ANY, *damage.JSON, damage.newer) if way is not damage.pipe]
Submit = Callable[..., StoredPlan]
OTHER = seal({"schema": 2, "worker": "two"})
"""A whole file of another kind."""


def exchanged(path: Path, draw: random.Random) -> None:
    """Put a whole file of another kind in its place."""
    path.write_bytes(OTHER)


WAYS.append(exchanged)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submit cells of the sweep `some` to an engine that starts nothing, and return the plan."""
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])

    def submitted(*words: str) -> StoredPlan:
        given = ("model=identity", f"results={tmp_path}", "sweep=some", *words)
        assert main(["submit", *TINY, *given]) == 0
        return StoredPlan(plan_folder(tmp_path, "some"))

    return submitted


def records(folder: Path) -> list[object]:
    """Return all that can be read of a plan: its head, and every cell."""
    plan = StoredPlan(folder)
    try:
        return [plan.head, *(plan.record(place) for place in range(len(plan.entries)))]
    finally:
        plan.close()


def test_no_byte_of_a_damaged_plan_is_taken_for_the_plan(submit: Submit) -> None:
    plan = submit("seed=0,1")
    folder, whole, told = plan.folder, records(plan.folder), list[tuple[str, str]]()
    files = [folder / plan.head[name] for name in ("cells", "index")] + [folder / HEAD]
    for number, path in enumerate(files):
        sound = path.read_bytes()
        for turn in range(3 * len(WAYS)):
            draw = random.Random(f"{number} {turn}")
            way = WAYS[turn % len(WAYS)]
            way(path, draw)
            try:
                assert records(folder) == whole, f"{way.__name__} of {path.name}"
            except BadPlan as error:
                told.append((path.name, str(error)))
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            path.unlink(missing_ok=True)
            path.write_bytes(sound)
    assert len(told) > 2 * len(WAYS) * len(files)
    assert all(name in said for name, said in told)
    assert all("rerun the `lra submit` command" in said for _, said in told)
    plan.close()


def test_the_same_command_writes_a_torn_plan_anew_and_says_what_is_lost(
    submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    submit("seed=0").close()
    both = submit("seed=1")
    assert len(both.entries) == 2
    place = both.entries[both.places[both.cell(1).key]].place
    data = bytearray(both.cells.read_bytes())
    data[place.offset + 20] ^= 1
    both.cells.write_bytes(data)
    capsys.readouterr()
    healed = submit("seed=1")
    said = capsys.readouterr().err
    assert [healed.cell(each).columns["seed"] for each in range(len(healed.entries))] == [1]
    assert "which loses 1 run of other commands; rerun the other `lra submit` commands" in said
    (healed.folder / HEAD).write_text("{")
    assert len(submit("seed=0").entries) == 1
    assert "is damaged: the plan is rewritten with only the runs" in capsys.readouterr().err
    both.close()
    healed.close()


def test_what_a_running_worker_has_read_goes_on(submit: Submit, tmp_path: Path) -> None:
    plan = submit("seed=0,1")
    worker = Worker(plan, WorkerOptions(name="one"))
    (plan.folder / HEAD).write_text("{")
    assert worker.changed()
    worker._reload()
    assert worker.plan is plan
    assert not worker.changed(), "it is said once"
    assert "continues with" in worker.log.path.read_text()
    claiming = Claiming(plan, Store(tmp_path), "two", None)
    place = plan.entries[0].place
    with plan.cells.open("r+b") as file:  # under those who have it open
        file.seek(place.offset)
        file.write(b"[")
    tried = [claiming.take(each) for each in claiming.possible()]
    assert {each and each.planned.cell.key for each in tried} == {None, plan.entries[1].key}
    assert "is damaged at byte" in claiming.set_aside[0]
    assert claiming.torn is not None
    assert {*Store(tmp_path).claims()} == {plan.entries[1].key}
    for each in tried:
        if each is not None:
            each.claim.release()
    submit("seed=0,1").close()
    assert worker.changed()
    worker._reload()
    assert worker.plan.cell(0).columns["seed"] == 0
    worker.plan.close()
    worker.log.close()
    plan.close()


def test_submissions_and_states_that_are_damaged_are_named_or_left_out(
    submit: Submit, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = submit("seed=0")
    folder = plan.folder
    plan.close()
    (note,) = (folder / submissions.FOLDER).iterdir()
    sound = note.read_bytes()
    WorkerState(folder, "one", "all").write()
    state = folder / "workers/one.json"
    told = state.read_bytes()
    assert read_states(folder)["one"]["doing"] == "starting"
    assert main(["submit", "--stop", "some", "--results", str(folder.parents[1])]) == 0
    for text in (b"", b"[]", b"{}", OTHER, sound.replace(b"local", b"losal"), sound[:-9]):
        note.write_bytes(text)
        state.write_bytes(text)
        capsys.readouterr()
        assert main(["submit", "--stop", "some", "--results", str(folder.parents[1])]) == 2
        assert f"{note} is damaged" in capsys.readouterr().err
        for flags in (["--once", "--workers"], ["--json"]):
            assert main(["watch", "some", "--results", str(folder.parents[1]), *flags]) == 3
        assert "Traceback" not in capsys.readouterr().err
    for text in (told.replace(b"starting", b"sterting"), sound):
        state.write_bytes(text)
        assert read_states(folder) == {}
    assert json.loads(sound)["cluster"] == "local"
    submissions.Note(folder, engine_of([]), []).add(["a"])
    assert [each["ids"] for each in submissions.submissions(folder)] == [["a"]]


def test_a_place_for_submissions_is_looked_for_before_workers_are_started(
    submit: Submit, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = submit("seed=0")
    plan.close()
    folder = plan.folder / submissions.FOLDER
    folder.rename(plan.folder / "elsewhere")
    folder.write_text("")
    begun = SimpleNamespace(count=0)
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: setattr(begun, "count", 1))
    given = ("model=identity", f"results={plan.root}", "sweep=some", "seed=0")
    assert main(["submit", *TINY, *given]) == 2
    assert "there is a file where a folder is needed" in capsys.readouterr().err
    assert not begun.count

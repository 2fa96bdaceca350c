"""What stands in the place of a file that is read back: a pipe, a device, a terabyte, any value.

Each verb that reads it ends within a limit, names it or does without it, and loses nothing.
"""

import json
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import cases

from lra.cli import main
from lra.cluster.local import LocalEngine
from lra.cluster.plan import BadPlan, StoredPlan, plan_folder
from lra.cluster.progress_of import Watcher, sweep_lines
from lra.cluster.state import WorkerState
from lra.cluster.submissions import submissions
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.rates import Rates, store_rates, stored_rates
from lra.runners.records import Measurement, Outcomes
from lra.runners.storage import index
from lra.runners.storage.claims import living_holders
from lra.runners.storage.formats import BadStore, read_cell, read_object
from lra.runners.storage.seals import DIGEST, seal
from lra.runners.store import Store, read_rows
from lra.tasks.data.storage import from_rows, open_store, write_store
from lra.tasks.errors import BadData, NotPrepared
from tests.lra import damage
from tests.lra.sweep.small_sweeps import TINY
from tests.lra.test_fuzz_command_line import alarm

WORDS = ("-m", *TINY, "model=identity", "seed=0,1", "sweep=some", "hardware.threads=1")
ROOM = 4 << 30
NO_FILES = (*damage.ENDLESS, damage.pipe, damage.a_folder, damage.dangling, damage.looping)
WAYS = [
    *NO_FILES, damage.emptied, damage.nested, damage.not_utf8, damage.zeroed, damage.twice,
    damage.another('{"a": 1e999}'), damage.another('{"a": NaN}'),
    damage.another(f'{{"a": {"9" * 400}}}'), damage.another('{"a": "\\ud800"}'),
]  # fmt: skip
TRIED = WAYS if cases(1) > 1 else [
    damage.pipe, damage.sparse, damage.a_folder, damage.emptied, damage.twice, damage.zeroed,
]  # fmt: skip
"""All in a campaign; what a reader of plain files must bear stands in tests/test_plain_files.py."""
HOSTILE = [
    None, True, -1, 1.5, 10**400, "x", "\ud800", [], [[1]], {}, {"a": {}}, float("inf"),
    float("nan"), 1e300, "1" * 5000,
]  # fmt: skip
CELL = "results/cells/*/*"
PLAN = "results/plans/some"
RESULTS = "--results=results"
DRY = ("run", *WORDS, "runner.dry_run=true")
WATCH = ("watch", "some", "--once", "--workers", RESULTS)
READ = (
    f"{CELL}/cell.json", f"{CELL}/environment-*.json", f"{CELL}/outcomes-*.npz", f"{CELL}/log.txt",
    f"{CELL}/checkpoint-*/resume.pt", "results/claims/*", "results/index/rows.json",
    "data/rates/*.json",
)  # fmt: skip
PLANNED = ("plan.json", "index-*.json", "cells-*.jsonl", "workers/*.json", "submissions/*.json")


RATES = Rates(products=1e9, memory=1e9, cache=1e9, exponentials=1e9, sorts=1e9, operator_s=1e-6)


PROFILE = HardwareProfile(name="cpu")


@contextmanager
def bounded(case: object) -> Iterator[None]:
    """Give the block some seconds, and some memory beyond what is there."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with alarm(case):
        resource.setrlimit(resource.RLIMIT_AS, (there + ROOM, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of two cells: one has rows, the other a claim and the state of a training."""
    folder = tmp_path_factory.mktemp("sound")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(folder / "data"))
        patch.setattr(LocalEngine, "submit", lambda *_: [])
        patch.setattr(index, "WORTH_WRITING", 1)
        patch.chdir(folder)
        assert main(["submit", *WORDS]) == 0
        store, plan = Store(folder / "results"), StoredPlan(plan_folder(Path("results"), "some"))
        one, two = plan.cell(0), plan.cell(1)
        plan.close()
        seen = Outcomes(
            split="test", index=np.arange(9), hit=np.arange(9) > 3, nll=np.zeros(9, np.float32)
        )
        row = Measurement(metric="accuracy", value=0.5, labels={"split": "test"})
        store.write(one, [row], [seen], {"torch": "2", "took_s": 9.0})
        (store.cell_folder(one.key) / "log.txt").write_text("printed\n")
        state = store.checkpoint_folder(two) / "resume.pt"
        state.parent.mkdir(parents=True)
        import torch

        torch.save({"step": 3}, state)
        claim = {"host": "elsewhere", "pid": 7, "place": "there", "title": "two", "at": 1.0}
        (folder / "results/claims").mkdir(exist_ok=True)
        (folder / "results/claims" / two.key).write_text(json.dumps(claim))
        worker = WorkerState(folder / PLAN, "one", "all")
        worker.begin(two.key, "two")
        index.statuses(folder / "results")
        store_rates(RATES, PROFILE, 1)
        rows = from_rows([np.arange(4, dtype=np.uint8)], np.zeros(1, np.uint8))
        write_store(folder / "data/mine", {"train": rows}, {"task": "mine"})
    return folder


@pytest.fixture
def here(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to stand in."""
    folder = tmp_path / "here"
    shutil.copytree(sound, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LRA_DATA", str(folder / "data"))
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    monkeypatch.delenv("LRA_DEBUG", raising=False)
    return folder


def place(path: Path, way: Callable[[Path, random.Random], None]) -> None:
    with suppress(ValueError):  # no JSON, in which no key stands
        way(path, random.Random(0))


def put_back(path: Path, content: bytes) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def contents(folder: Path) -> dict[str, bytes]:
    """Return what of a store is a result, or on the way to be one."""
    return {str(path): path.read_bytes() for path in folder.glob("results/cells/*/*/**/*.*")
            if path.is_file() and path.stat().st_size < 1 << 30}  # fmt: skip


def told(capsys: pytest.CaptureFixture[str], case: object, *words: str) -> tuple[int, str]:
    """Run `lra` within limits; return how it ended and all that it said."""
    with bounded(case):
        code = main([*words])
    out, err = capsys.readouterr()
    assert "Traceback" not in err, (case, err)
    assert "this is a bug" not in err, (case, err)
    assert code in (0, 1, 2, 3), (case, out, err)
    return code, out + err


@pytest.mark.fuzz
@pytest.mark.parametrize("way", TRIED, ids=lambda way: way.__name__)
def test_no_wrong_thing_in_a_store_hangs_a_verb(
    way: Callable[[Path, random.Random], None], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (rows,) = here.glob(f"{CELL}/rows-*.jsonl")
    paths = [next(here.glob(pattern)) for pattern in READ]
    for path in paths:
        place(path, way)
    before = contents(here)
    code, said = told(capsys, "dry run", *DRY)
    assert code == 0, said
    assert "2 runs in results: 1 done, 1 to do" in said
    code, said = told(capsys, "doctor", "doctor", "--store", RESULTS)
    named = [path for path in paths if path.is_relative_to(here / "results/cells")]
    unnamed = {path.name for path in named if path.name not in said}
    if way is not damage.twice:  # of which an archive may take no notice
        assert unnamed == ({"log.txt"} if way not in NO_FILES else set())  # it may hold anything
    code, said = told(capsys, "show", "show", rows.parent.name, RESULTS)
    assert code == 2
    assert str(paths[0].relative_to(here)) in said
    before = contents(here)
    place(rows, way)
    code, said = told(capsys, "dry run", *DRY)
    assert code == 0, said
    assert "0 done, 2 to do" in said
    assert before.items() - contents(here).items() <= {(str(rows), before[str(rows)])}
    left_out: list[BadStore] = []
    with bounded("rows"):
        assert read_rows(here / "results", left_out=left_out).empty
    assert rows.name in str(left_out)


@pytest.mark.fuzz
@pytest.mark.parametrize("way", TRIED, ids=lambda way: way.__name__)
def test_no_wrong_thing_in_a_plan_hangs_a_verb(
    way: Callable[[Path, random.Random], None], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(here)
    for name in PLANNED:
        (path,) = here.glob(f"{PLAN}/{name}")
        content = path.read_bytes()
        place(path, way)
        code, said = told(capsys, name, *WATCH)
        assert code == 3 or path.name in said, (name, said)
        if name.startswith("sub"):
            code, said = told(capsys, name, "submit", "--stop", "some", RESULTS)
            assert code == 2
            assert path.name in said
        put_back(path, content)
    assert contents(here) == before


@pytest.mark.fuzz
@pytest.mark.parametrize("way", TRIED, ids=lambda way: way.__name__)
def test_no_wrong_thing_in_a_cache_hangs_its_reader(
    way: Callable[[Path, random.Random], None], here: Path
) -> None:
    place(here / "data/mine/manifest.json", way)
    with bounded("manifest"), pytest.raises((BadData, NotPrepared), match="data/mine"):
        open_store(here / "data/mine")
    place(next(here.glob("data/rates/*.json")), way)
    with bounded("rates"):
        assert stored_rates(PROFILE, 1) is None


def every_value(content: bytes) -> Iterator[dict[str, Any]]:
    """Yield an object with another value in each place of it, one after the other."""
    whole = json.loads(content)
    number = 0

    def places(node: Any) -> Iterator[tuple[Any, Any]]:
        for key in node if isinstance(node, dict) else range(len(node)):
            yield node, key
            if isinstance(node[key], dict | list):
                yield from places(node[key])

    found = list(places(whole))
    for node, key in random.Random(0).sample(found, min(len(found), cases(20))):
        was = node[key]
        for _ in range(3):
            node[key] = HOSTILE[number % len(HOSTILE)]
            number += 1
            yield whole
        node[key] = was


def reader(name: str, here: Path) -> Callable[[Path], object]:
    """Return what reads a file, as the verbs do."""
    if name.endswith("cell.json"):
        return lambda path: read_cell(path.parent)
    if name.startswith("results/claims"):
        return lambda path: (living_holders(path.parent), json.dumps(living_holders(path.parent)))
    if name.startswith("results/plans"):
        return lambda path: (
            [*sweep_lines(Watcher(StoredPlan(here / PLAN)).look(), {}, 9)]
            and submissions(here / PLAN)
        )
    return {
        "results/index/rows.json": lambda _: index.statuses(here / "results"),
        "data/mine/manifest.json": lambda _: open_store(here / "data/mine"),
        "data/rates/*.json": lambda _: stored_rates(PROFILE, 1),
    }.get(name, read_object)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", [
    f"{CELL}/cell.json", f"{CELL}/environment-*.json", "results/claims/*",
    "results/index/rows.json", "data/mine/manifest.json", "data/rates/*.json",
    f"{PLAN}/plan.json", f"{PLAN}/workers/*.json", f"{PLAN}/submissions/*.json",
])  # fmt: skip
def test_no_value_in_any_field_ends_in_a_traceback(name: str, here: Path) -> None:
    (path,) = here.glob(name)
    content, read = path.read_bytes(), reader(name, here)
    has_digest = DIGEST in json.loads(content)
    refusals = []
    with bounded(name):
        for changed in every_value(content):
            if has_digest:  # as another version of lra may write it
                own = {key: value for key, value in changed.items() if key != DIGEST}
                try:
                    path.write_bytes(seal(own))
                except UnicodeEncodeError:
                    continue
            else:
                path.write_text(json.dumps(changed))
            try:
                read(path)
            except (BadStore, BadPlan, BadData) as error:
                refusals.append(str(error))
    assert all(str(path.relative_to(here).parent) in each for each in refusals)
    assert all("\n" not in each for each in refusals)
    assert refusals or not name.startswith(CELL)

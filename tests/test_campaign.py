"""The campaign of faults: its checks notice what they are for, and its page shows what was kept."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import shared_memory, synchronize
from pathlib import Path

import pytest

from lra.runners.records import Measurement
from lra.runners.store import Store
from tests.campaign import fresh, machine, published, shim
from tests.campaign.part import Found
from tests.campaign.sweeps import check_store
from tests.lra_process import python
from tests.runners.storage.stored_cells import make_cell

PAGE = published.KEPT.parents[1] / "campaign.md"


CALLS = {
    "read": "open(file).close()", "list": "os.listdir(folder)", "stat": "os.stat(file)",
    "write": "open(folder + '/new', 'w')", "lock": "fcntl.flock(held, fcntl.LOCK_EX)",
    "flush of a folder": "os.fsync(held)", "removal": "os.unlink(file)",
}  # fmt: skip
"""Of each kind one, by the name that Python calls."""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_one_kind_fail_and_no_others(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    shim.preload(tmp_path)
    below = tmp_path / "below"
    below.mkdir()
    (below / "file").touch()
    faults = shim.Faults(tmp_path / "faults", below)
    lines = [
        "import fcntl, os, sys",
        "folder = sys.argv[1]",
        "file = folder + '/file'",
        "held = os.open(folder, os.O_RDONLY)",
        "open(sys.argv[2], 'w').write(sys.argv[3])",
    ]
    for name, call in CALLS.items():
        lines += ["try:", f"    {call}", f"    print('{name}: done')", "except OSError as error:",
                  f"    print('{name}:', error.errno)"]  # fmt: skip
    setting = f"1000 {errno.ESTALE} {shim.KINDS[kind]}"
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(below), str(faults.folder / "calls"), setting],
        env={**os.environ, **faults.variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    said = dict(line.split(": ") for line in done.stdout.splitlines())
    assert said == {**dict.fromkeys(CALLS, "done"), kind: str(errno.ESTALE)}
    assert {*faults.by_kind()} == {kind}


def test_the_page_shows_the_figures_that_are_kept() -> None:
    parts = json.loads(published.KEPT.read_text(encoding="utf-8"))["parts"]
    text = PAGE.read_text(encoding="utf-8")
    assert published.placed(text, parts) == text
    assert all(part["faults"] and not part["wrong"] for part in parts if not part["left_out"])
    for part in parts:
        assert f"| `{part['part']}` |" in text
    faults = sum(sum(part["faults"].values()) for part in parts)
    checks = sum(part["checks"] for part in parts)
    assert f"caused {faults:,} faults, and {checks:,} checks found 0 errors" in " ".join(
        text.split()
    )


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    whole = tmp_path / "whole"
    store = Store(whole)
    for seed in range(2):
        cell = make_cell(seed, "abc123")
        store.write(cell, [Measurement(metric="accuracy", value=0.5, labels={"split": "test"})], [],
                    {"torch": "2"})  # fmt: skip
        store.record_in_sweep("mine", cell.key)
    shutil.copytree(whole, tmp_path / "results")
    return tmp_path / "results", whole


def rows_file(results: Path) -> Path:
    return sorted(results.glob("cells/*/*/rows-*"))[0]


FAULTS = {
    "lost cells": lambda path: path.unlink(),
    "has 2 files of rows": lambda path: shutil.copy(path, path.with_name("rows-def456.jsonl")),
    "rows twice": lambda path: path.write_text(path.read_text() * 2),
    "rows differ": lambda path: path.write_text(path.read_text().replace("0.5", "0.25")),
    "the last line is incomplete": lambda path: path.write_text(path.read_text()[:-9]),
    "more files": lambda path: path.with_name(".rows-abc123.jsonl.x.1.00000000.tmp").touch(),
    "lacks files": lambda path: path.with_name("environment-abc123.json").unlink(),
    "claims are left": lambda path: (claims_of(path) / path.parent.name).touch(),
    "sweep mine lists 1": lambda path: sorted(path.parents[3].glob("sweeps/mine/*"))[0].unlink(),
}  # fmt: skip


def claims_of(path: Path) -> Path:
    folder = path.parents[3] / "claims"
    folder.mkdir()
    return folder


def test_a_store_without_a_fault_passes(stores: tuple[Path, Path]) -> None:
    found = Found("test")
    check_store(found, *stores, "untouched")
    assert not found.wrong
    assert found.checks > 10
    assert found.figures["rows compared"] == 2


@pytest.mark.parametrize("word", FAULTS)
def test_every_check_of_a_store_notices_its_fault(word: str, stores: tuple[Path, Path]) -> None:
    FAULTS[word](rows_file(stores[0]))
    found = Found("test")
    check_store(found, *stores, "with a fault")
    assert any(word in sentence for sentence in found.wrong), found.wrong


@pytest.mark.skipif(not machine.SHARED.is_dir(), reason="the system shows no shared memory")
def test_shared_memory_that_is_left_is_that_of_the_case(tmp_path: Path, monkeypatch) -> None:
    """Names as Python and PyTorch give them, in a fork of a marked process and in a stranger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "PATIENCE_S", 0.0)

    def forked(act: Callable[[], set[str]]) -> set[str]:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.write(writer, " ".join(act()).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writer)
        with os.fdopen(reader) as names:
            return {*names.read().split()}

    def left() -> set[str]:
        names = {
            f"sem.{synchronize.SemLock._make_name()[1:]}", shared_memory._make_filename()[1:],
            f"torch_{os.getpid()}_1234_0",
        }  # fmt: skip
        for name in names:
            (machine.SHARED / name).touch()
        return names

    def marked() -> set[str]:
        fresh.begin()
        return forked(left)

    own: set[str] = set()
    others: set[str] = set()
    try:
        others, own = forked(left), forked(marked)
        assert len(own) == len(others) == 3
        assert machine.left_shared_memory(tmp_path) == own
        assert machine.left_shared_memory(tmp_path.parent) == set()
    finally:
        for name in own | others:
            (machine.SHARED / name).unlink()


@pytest.mark.slow
def test_the_short_campaign_finds_nothing_wrong(tmp_path: Path) -> None:
    done = python("-m", "tests.campaign", "--short", "--out", tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    parts = json.loads((tmp_path / "campaign.json").read_text())["parts"]
    assert [part["part"] for part in parts] == ["disk", "calls", "torn"]
    applied = {part["part"]: sum(part["faults"].values()) for part in parts}
    tried = {part["part"] for part in parts if not part["left_out"]}
    assert all(applied[part] for part in tried - {"disk"}), applied
    assert "torn" in tried

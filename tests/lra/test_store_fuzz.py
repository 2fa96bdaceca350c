"""One random file of a store, damaged in a random way: named, never a traceback, the rest lives."""

import json
import os
import random
import re
import shutil
import zipfile
from functools import partial

import damage
import numpy as np
import pytest
from fuzz import cases

from lra.runners.records import Measurement, Outcomes
from lra.runners.store import BadStore, Store, read_outcomes, read_rows
from tests.runners.storage.stored_cells import make_cell

cell = partial(make_cell, fingerprint="abc123")


def fill(root):
    store = Store(root)
    for seed in range(3):
        rows = [
            Measurement(
                metric="accuracy", value=0.25 + seed / 10, labels={"split": s, "examples": "100"}
            )
            for s in ("validation", "test")
        ]
        rows.append(Measurement(metric="train_step_time", value=0.5, samples=(0.25, 0.5, 0.75)))
        index = np.arange(50)
        hit, nll = index % 3 == 0, np.linspace(0, 1, 50, dtype=np.float32)
        outcomes = [Outcomes(split="test", index=index, hit=hit, nll=nll)]
        store.write(cell(seed), rows, outcomes, {"torch": "2", "python": "3"})
        store.record_in_sweep("mine", cell(seed).key)
        folder = store.checkpoint_folder(cell(seed))
        folder.mkdir()
        with zipfile.ZipFile(folder / "weights.pt", "w") as archive:
            archive.writestr("data", bytes(range(200)))
    return store


def contents(root, without):
    return {
        path: path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path != without and "reports" not in path.parts
    }


def kinds(name):
    found = list(damage.ANY)
    if name.endswith((".json", ".jsonl")):
        found += damage.JSON
    return found + {"rows-abc123.jsonl": damage.ROWS, "cell.json": damage.CELL}.get(name, [])


@pytest.mark.share(2)
@pytest.mark.fuzz
@pytest.mark.parametrize("name", [
    "cell.json", "rows-abc123.jsonl", "environment-abc123.json", "outcomes-abc123.npz",
    "checkpoint-abc123/weights.pt",
])  # fmt: skip
def test_one_damaged_file(name, tmp_path, monkeypatch, lra):
    monkeypatch.setattr("lra.results.reporting.kinds", dict)  # which reads fifty files
    (tmp_path / "sound").mkdir()
    fill(tmp_path / "sound")
    generator = random.Random(name)
    for number in range(cases(2)):
        root = tmp_path / f"results-{number}"
        shutil.copytree(tmp_path / "sound", root)
        seed = generator.randrange(3)
        path = Store(root).cell_folder(cell(seed).key) / name
        before = contents(root, path)
        kind = generator.choice(kinds(name))
        kind(path, generator)
        try:
            again = check(root, path, seed, kind.__name__ in damage.HARMLESS, lra)
            assert contents(root, path) == before
            if again:
                runs_again(Store(root), cell(seed), path)
                after = contents(root, path)
                others = {p: b for p, b in before.items() if path.parent not in p.parents}
                assert others.items() <= after.items()
        except BaseException as error:
            error.add_note(f"{name}, {kind.__name__}, {root}")
            raise
        shutil.rmtree(root)


def check(root, path, seed, harmless, lra):
    """Ask every reader; return whether the cell is to run again."""
    store, own = Store(root), cell(seed)
    others = {cell(other).key for other in range(3) if other != seed}
    code, told = lra("doctor", "--store", "--results", root)
    assert code == (str(path) in told)  # the one thing that is damaged
    assert code or harmless
    assert all(line.startswith("FAIL") for line in told.splitlines()[:-1])
    named = bool(code)
    blocks = named and path.name in ("cell.json", "rows-abc123.jsonl")

    code, told = lra("report", "--results", root)
    assert code == blocks
    page = (root / "reports" / "all" / "report.md").read_text()
    assert f"from {3 - blocks} runs" in page
    if blocks:
        assert str(path) in told
        assert path.name in page.partition("## Excluded")[2]

    left_out = []
    rows = read_rows(root, left_out=left_out)
    bad_rows = named and path.name.startswith("rows")
    assert set(rows["cell"]) == (others if bad_rows else {*others, own.key})
    assert [str(path) in str(error) for error in left_out] == [True] * bad_rows

    code, told = lra("show", own.key, "--results", root)
    shown = named and path.suffix in (".json", ".jsonl")
    assert code == 2 * shown
    assert str(path) in told or not shown
    if named and path.suffix == ".npz":
        with pytest.raises(BadStore, match=re.escape(str(path))):
            read_outcomes(root, own.key)

    for other in range(3):
        if other != seed:
            assert store.complete(cell(other))
    if bad_rows and "update lra" in told:  # rows of a newer version are not damaged
        with pytest.raises(BadStore, match="has schema 99"):
            store.complete(own)
        return False
    assert store.complete(own) != bad_rows
    return named and path.suffix != ".pt"


def runs_again(store, own, path):
    """Whoever writes the cell anew sets what is damaged aside."""
    was = path.read_bytes() if path.is_file() else None
    rows = [Measurement(metric="accuracy", value=0.5, labels={"split": "test"})]
    index = np.arange(3)
    seen = Outcomes(split="test", index=index, hit=index > 1, nll=np.zeros(3, np.float32))
    store.write(own, rows, [seen], {"torch": "2"})
    assert store.complete(own)
    assert len(read_outcomes(store.root, own.key)) == 1
    (aside,) = path.parent.glob(f"damaged-*-{path.name}")
    assert was is None or aside.read_bytes() == was


def test_rows_of_before_the_mark_are_complete(tmp_path):
    """Files whose lines do not say whether another one follows stay readable."""
    store = fill(tmp_path)
    path = store.cell_folder(cell(0).key) / "rows-abc123.jsonl"
    path.write_bytes(path.read_bytes().replace(b" \n", b"\n"))
    assert store.complete(cell(0))
    assert len(read_rows(tmp_path)) == 9


def test_what_others_leave_behind_is_no_damage(tmp_path, lra):
    store = fill(tmp_path)
    store.record_in_sweep("mine", "0" * 16)
    folder = store.cell_folder(cell(0).key)
    old = folder / ".rows-abc123.jsonl.host.1.x.tmp"
    claim = tmp_path / "claims" / cell(0).key
    claim.parent.mkdir()
    for path in (old, claim):
        path.write_text("half")
        os.utime(path, (0, 0))
    (folder / "log.txt").write_text("printed")
    (folder / "damaged-1-rows-abc123.jsonl").write_text("half")
    code, told = lra("doctor", "--store", "--results", tmp_path)
    assert code == 0
    for named in (old, claim, tmp_path / "sweeps" / "mine", folder / "damaged-1-rows-abc123.jsonl"):
        assert f"left {named}: " in told
    assert len(told.splitlines()) == 5


@pytest.mark.share(2)
@pytest.mark.parametrize("place", ["cells/3f", "cells/3f/3fa9c1e07b2d4c58", "sweeps", "claims",
                                   "sweeps/mine", "claims/0000000000000000"])  # fmt: skip
def test_files_and_folders_in_each_others_place(place, tmp_path, lra):
    fill(tmp_path)
    path = tmp_path / place
    if path.is_dir():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if place.startswith("claims/"):
        path.mkdir()
    else:
        path.write_text("a file")
    code, told = lra("doctor", "--store", "--results", tmp_path)
    assert code == 1
    assert f"FAIL {path}" in told
    code, told = lra("report", "--results", tmp_path)
    assert code == place.startswith("cells")
    assert "from 3 runs" in (tmp_path / "reports/all/report.md").read_text()


def test_a_lost_side_file_is_named(tmp_path, lra):
    store = fill(tmp_path)
    for seed, name in enumerate(("cell.json", "environment-abc123.json")):
        path = store.cell_folder(cell(seed).key) / name
        path.unlink()
        code, told = lra("doctor", "--store", "--results", tmp_path)
        assert code == 1
        assert f"{path}: this file is missing" in told
        code, told = lra("show", cell(seed).key, "--results", tmp_path)
        assert code == 2
        assert str(path) in told


def test_a_store_of_nothing_but_damage(tmp_path, lra):
    for path in fill(tmp_path).root.glob("cells/*/*/rows-*"):
        path.write_bytes(b"")
    code, told = lra("report", "--results", tmp_path)
    assert code == 2
    assert "line 1: rows are missing" in told


def test_an_audit_as_json(tmp_path, lra):
    fill(tmp_path)
    code, told = lra("doctor", "--store", "--json", "--results", tmp_path)
    assert code == 0
    assert json.loads(told) == {"cells": 3, "damaged": [], "left": []}
    assert lra("doctor", "--store", "--results", tmp_path / "none")[0] == 2

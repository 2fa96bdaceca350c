"""The campaign of faults: its checks notice what they are for, and its page shows what was kept."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lra.runners.records import Cell, Measurement
from lra.runners.store import Store
from tests.campaign import published
from tests.campaign.part import Found
from tests.campaign.sweeps import check_store
from tests.lra_process import HOME

SHORT = ("workers", "disk", "clocks", "torn", "words")
"""Parts of which tests elsewhere do the same are left to the long form: kills, two sweeps."""
PAGE = published.KEPT.parents[1] / "campaign.md"
COLUMNS = {
    "runner": "train", "mode": "train", "model": "linear", "task": "listops", "task_version": 1,
    "source": "generated", "length": 512, "causal": False, "hardware": "cpu", "device": "some CPU",
    "precision": "float32", "threads": 1,
}  # fmt: skip


def test_the_page_shows_the_figures_that_are_kept() -> None:
    parts = json.loads(published.KEPT.read_text(encoding="utf-8"))["parts"]
    text = PAGE.read_text(encoding="utf-8")
    assert published.placed(text, parts) == text
    assert all(part["faults"] and not part["wrong"] for part in parts if not part["left_out"])
    for part in parts:
        assert f"| `{part['part']}` |" in text


@pytest.fixture
def stores(tmp_path: Path) -> tuple[Path, Path]:
    whole = tmp_path / "whole"
    store = Store(whole)
    for seed in range(2):
        cell = Cell(
            identity={"seed": seed}, columns={**COLUMNS, "seed": seed}, config={}, overrides=(),
            fingerprint="abc123",
        )  # fmt: skip
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
    "torn": lambda path: path.write_text(path.read_text()[:-9]),
    "more files": lambda path: path.with_name(".rows-abc123.jsonl.x.1.00000000.tmp").touch(),
    "lacks files": lambda path: path.with_name("environment-abc123.json").unlink(),
    "claims are left": lambda path: (claims(path) / path.parent.name).touch(),
    "sweep mine lists 1": lambda path: sorted(path.parents[3].glob("sweeps/mine/*"))[0].unlink(),
}  # fmt: skip


def claims(path: Path) -> Path:
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


@pytest.mark.slow
def test_the_short_campaign_finds_nothing_wrong(tmp_path: Path) -> None:
    chosen = [word for part in SHORT for word in ("--only", part)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign", "--short", "--out", str(tmp_path), *chosen],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    parts = json.loads((tmp_path / "campaign.json").read_text())["parts"]
    assert [part["part"] for part in parts] == [*SHORT]
    applied = {part["part"]: sum(part["faults"].values()) for part in parts}
    tried = {part["part"] for part in parts if not part["left_out"]}
    assert all(applied[part] for part in tried - {"disk", "workers"}), applied
    assert {"torn", "words"} <= tried

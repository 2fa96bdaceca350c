"""Results that are sound and awkward: every verb says what is there, and merges nothing."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lra.runners.records import Measurement, Status
from lra.runners.storage.formats import pretty
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell

Lra = Callable[..., tuple[int, str]]
NAMES = ("<script>alert(1)</script>", "50%_$x$", "a|b`c`", "../../etc", "\"'&amp;")
TOLD = {"split": "test", "examples": "100"}


def put(store: Store, *measurements: Measurement, schema: int = 2, **columns: Any) -> Path:
    """Store one cell; return the file with its rows."""
    mixer, runner = columns.pop("mixer", {}), columns.get("runner", "train")
    usual = {"model": "linear", "task_version": 1, "seed": 0, "hardware": "cpu"}
    told = {name: columns.get(name, value) for name, value in usual.items()}
    cell = make_cell(
        identity={**told, "mixer": mixer, "runner": {"name": runner}},
        **{"device": "chip", **columns},
    )
    path = store.write(cell, measurements, [], {"torch": "2"})
    store.record_in_sweep("mine", cell.key)
    if schema == 1:
        path.write_text(path.read_text().replace('"schema":2', '"schema":1'))
        about = path.with_name("cell.json")
        about.write_bytes(pretty(json.loads(about.read_text()) | {"schema": 1}))
    return path


def score(value: float, **labels: str) -> Measurement:
    return Measurement(metric="accuracy", value=value, labels=TOLD | labels)


def timed(store: Store, seconds: float, **columns: Any) -> None:
    rows = [
        Measurement(metric="time", value=seconds, samples=(seconds,) * 3),
        Measurement(metric="batch_size", value=4.0),
    ]
    put(store, *rows, runner="scaling", mode="step", **columns)


def schemas(store: Store) -> None:
    put(store, score(0.25), schema=1)
    put(store, score(0.75), mixer={"features": 4})


def machines(store: Store) -> None:
    for name, value in (("cpu", 0.25), ("h100", 0.75)):
        put(store, score(value), hardware=name, device=name)
        timed(store, value, hardware=name, device=name)


def protocols(store: Store) -> None:
    for name, value in (("one", 0.25), ("two", 0.75)):
        put(store, score(value, protocol=name), mixer={"of": name})


def versions(store: Store) -> None:
    for version, value in ((1, 0.25), (2, 0.75)):
        put(store, score(value), task_version=version)
        timed(store, value, task_version=version)


def one_seed(store: Store) -> None:
    put(store, Measurement(metric="accuracy", value=0.25, labels={"split": "test"}))
    put(store, score(0.75), model="softmax")


def no_score(store: Store) -> None:
    put(store, Measurement(metric="train_loss", value=1.0, step=1))
    put(store, score(0.75), model="softmax")


def failures(store: Store) -> None:
    put(store, Measurement(metric="accuracy", status=Status.diverged, reason="nan", labels=TOLD))
    put(store, score(0.75), model="softmax")


SHOWN: dict[Callable[[Store], None], tuple[str, ...]] = {
    schemas: (
        r"linear \(features=4\) \| \*\*75",
        r"linear \(features=none\) \| <ins>25",
        "schema 1, 2",
    ),
    machines: (
        r"linear \(hardware=cpu\) \| <ins>25",
        r"linear \(hardware=h100\) \| \*\*75",
        "cpu, h100",
    ),
    protocols: (r"linear .*one.* \| <ins>25", r"linear .*two.* \| \*\*75"),
    versions: (r"\| 25\.0 .*\| –¹ \|", r"\| –¹ \| 75\.0", "version 1 .*; listops version 2"),
    one_seed: (
        r"linear \| <ins>25\.0</ins>¹ \|",
        r"softmax \| \*\*75\.0\*\* \[65\.7, 82\.5; 100 examples\]",
    ),
    no_score: (r"linear \| –¹ \|", "¹ this training has no accuracy on the test split"),
    failures: (r"linear \| diverged¹ \|", "¹ diverged: nan"),
}
"""What the report prints: nowhere the mean, 50."""


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra.results.reporting.kinds", dict)  # which reads fifty files


@pytest.mark.parametrize("fill", SHOWN, ids=lambda fill: fill.__name__)
def test_what_differs_is_not_merged(
    fill: Callable[[Store], None], tmp_path: Path, lra: Lra, one_format: None
) -> None:
    store = Store(tmp_path / "results")
    fill(store)
    assert lra("report", "--results", store.root)[0] == 0
    folder = store.root / "reports" / "all"
    for text in ((folder / "report.md").read_text(),):
        for line in SHOWN[fill]:
            assert re.search(line, text) or (text.count("schema") == 0 and "|" not in line), line
        assert "| 50.0" not in text
    (key, *_) = (path.name for path in store.root.glob("cells/*/*"))
    assert lra("show", key, "--results", store.root)[0] == 0


def test_names_of_any_kind_are_escaped(tmp_path: Path, lra: Lra, one_format: None) -> None:
    store = Store(tmp_path / "results")
    for name in NAMES:
        put(store, score(0.5), model=name)
        why = Measurement(metric="time", status=Status.crashed, reason=f"{name}\n{name}")
        put(store, why, model=name, runner="scaling", mode="step")
    assert lra("report", "--results", store.root)[0] == 0
    folder = store.root / "reports" / "all"
    for file in ("report.html", "report.md"):
        assert not re.search(r"(?<!\\)<script>alert", (folder / file).read_text()), file
    assert sorted(tmp_path.rglob("etc*")) == []
    with pytest.raises(ValueError, match="wanted printable text"):
        put(store, score(0.5), model="two\nlines")


def test_stores_with_nothing_in_them(tmp_path: Path, lra: Lra) -> None:
    store = Store(tmp_path / "results")
    asked = ("--results", store.root)
    for prepare in (store.root.mkdir, (store.root / "cells").mkdir):
        prepare()
        assert lra("report", *asked) == (
            2, f"lra: there are no results in {store.root}: `lra run` writes results\n"
        )  # fmt: skip
        assert "runs there: none" in lra("show", "3fa9", *asked)[1]
    store.record_in_sweep("mine", "3fa9" * 4)
    code, told = lra("report", *asked, "--sweep", "mine")
    assert (code, "no run of mine" in told) == (2, True)

    path = put(store, score(0.5))
    put(store, score(0.5), seed=1)
    path.write_bytes(path.read_bytes().replace(b"chip", b"ch\xff"))
    for folder in (b"cells/\xff", b"cells/\xff/\xff", b"sweeps/\xfe"):  # names that are no text
        (store.root / os.fsdecode(folder)).mkdir()
    code, told = lra("report", *asked)
    assert (code, f"excluded: {path}, line 1: the line is damaged" in told) == (1, True)
    assert lra("report", *asked, "--sweep", "mien")[0] == 2
    assert lra("show", path.parent.name, *asked)[0] == 2

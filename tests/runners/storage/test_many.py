"""Cells that are read together give what they give one by one, damaged or not."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from runners.records import CELL_COLUMNS, Cell, Measurement, Status
from runners.storage import many
from runners.storage.blocks import sound_block
from runners.storage.formats import BadStore
from runners.store import Store, read_rows, read_rows_file, table_of

COLUMNS = dict.fromkeys(CELL_COLUMNS, "x") | {
    "length": 9, "seed": 0, "task_version": 1, "threads": 1, "causal": False,
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    store = Store(tmp_path / "results")
    for number in range(12):
        rows = [
            Measurement(metric="train_loss", value=0.5 + number, step=step, samples=(1.0, 2.0))
            for step in range(number % 3 + 1)
        ]
        rows.append(Measurement(metric="time", status=Status.timeout, reason="too long"))
        for fingerprint in ("ab", "cd")[: number % 2 + 1]:  # the second by newer code
            cell = Cell(identity={"n": number}, columns=COLUMNS, config={}, fingerprint=fingerprint)
            store.write(cell, rows, [], {})
    return store.root


def one_by_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pd.DataFrame, list[str]]:
    left_out: list[BadStore] = []
    with monkeypatch.context() as patch:
        patch.setattr(many, "_unchecked", lambda _: None)
        rows = read_rows(root, left_out=left_out)
    return rows, [str(error) for error in left_out]


@pytest.mark.filterwarnings("ignore::runners.store.MixedSources")
def test_together_as_one_by_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = sorted(root.glob("cells/*/*/rows-*.jsonl"))
    monkeypatch.setattr(many, "_TOGETHER", 5)

    def agree() -> list[str]:
        left_out: list[BadStore] = []
        rows = read_rows(root, left_out=left_out)
        told = [str(error) for error in left_out]
        expected, reasons = one_by_one(root, monkeypatch)
        pd.testing.assert_frame_equal(rows, expected)
        assert told == reasons
        if not told:
            newest = [max(folder.glob("rows-*")) for folder in sorted(root.glob("cells/*/*"))]
            flat = [row for path in newest for row in read_rows_file(path, path.parent.name)]
            pd.testing.assert_frame_equal(rows, table_of(flat))
        return told

    assert agree() == []
    old = json.loads(files[0].read_text().splitlines()[0])
    for number, change in enumerate(
        (
            {"value": "7"}, {"samples": [1, True]}, {"labels": {"factor": "x"}}, {"cell": "00"},
            {"schema": 3}, {"schema": 1, "model": "floor/majority"},
        )
    ):  # fmt: skip
        whole = files[number].read_text()
        lines = whole.splitlines(keepends=True)
        row = {**json.loads(lines[0]), **change}
        files[number].write_text(json.dumps(row) + " \n" + "".join(lines[1:]))
        assert len(agree()) == ("model" not in change), change
        files[number].write_text(whole)
    assert old["schema"] == 2
    for text in ("", "\n", " \n", "[]\n", "{}\n", whole.replace(" \n", "\n", 1)[:-3], whole * 2):
        files[3].write_text(text)
        assert len(agree()) == 1, text
    files[3].unlink()
    files[3].mkdir()
    assert len(agree()) == 1


PUBLISHED = Path(__file__).resolve().parents[3] / "reports/published"
SOME = 12
"""Cells of each published file: a test of all rows would take half a minute."""


@pytest.mark.filterwarnings("ignore::runners.store.MixedSources")
def test_published_rows_in_a_store_are_read_as_they_are(tmp_path: Path) -> None:
    kept: dict[Path, list[str]] = {}
    for file in sorted(PUBLISHED.glob("*.jsonl")):
        first: dict[Path, list[str]] = {}
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "cell" not in row:  # numbers of a benchmark
                break
            folder = tmp_path / "cells" / row["cell"][:2] / row["cell"]
            path = folder / f"rows-{row['fingerprint']}.jsonl"
            if path not in kept and (path in first or len(first) < SOME):
                first.setdefault(path, []).append(line)
        kept |= first
    for path, lines in kept.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    expected = []
    for folder in sorted(tmp_path.glob("cells/*/*")):
        files = [read_rows_file(path, folder.name) for path in sorted(folder.glob("rows-*"))]
        expected += max(files, key=lambda rows: rows[0]["created"])
    table = table_of(expected)
    pd.testing.assert_frame_equal(read_rows(tmp_path), table, check_exact=True)
    assert len(table) > 1000
    blocks = [sound_block(path, path.parent.name) for path in kept]
    assert 0.9 < sum(each is not None for each in blocks) / len(blocks) < 1  # some are of baselines


def end_of(text: str) -> str:
    """Return the last row of a file as an object of its own columns alone."""
    return "{" + text[text.rindex('"metric":') : -1]


ROW = '{"a":1,"metric":"x"}'


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace('"step":1', '"step":1,"cell":"00"'), id="twice"),
        pytest.param(lambda text: text.replace('"step":1', '"labels":{},"step":1'), id="again"),
        pytest.param(lambda text: text.replace('"seed":0,', "", 1), id="first lacks a column"),
        pytest.param(lambda text: text.replace('"seed":0', '"seed":"0"'), id="text for number"),
        pytest.param(
            lambda text: text.replace('"model":"x"', '"model":",\\"metric\\":"'), id="name"
        ),
        pytest.param(
            lambda text: text.replace('"model":"x"', '"model":","metric":"'), id="no JSON"
        ),
        pytest.param(lambda text: text.replace('"model":"x"', f'"model":{ROW}'), id="nested"),
        pytest.param(lambda text: text.replace('"labels":{}', f'"labels":{ROW}', 1), id="labels"),
        pytest.param(lambda text: text.replace("} \n{", "},{", 1), id="two in a line"),
        pytest.param(lambda text: text.replace("} \n{", "}] \n[{", 1), id="brackets"),
        pytest.param(lambda text: text.replace("[1.0,", "[NaN,"), id="not a number"),
        pytest.param(lambda text: text.replace("[1.0,", "[1e999,"), id="infinite"),
        pytest.param(lambda text: text.replace('"unit":"nat"', '"unit":"s"', 1), id="unit"),
        pytest.param(lambda text: text.replace(" \n", "\n", 1), id="one line more"),
        pytest.param(lambda text: text[: text.index(" \n") + 2], id="one line alone"),
        pytest.param(lambda text: text.replace('"model":"x"', '"model":"y"', 1), id="one apart"),
        pytest.param(lambda text: text.replace('"schema":2', '"schema":1'), id="schema 1"),
        pytest.param(lambda text: text.replace('"schema":2', '"schema":9'), id="newer"),
        pytest.param(lambda text: f"{text} x", id="a letter behind"),
        pytest.param(lambda text: text.replace("} \n", f"}},{end_of(text)} \n", 1), id="one more"),
        pytest.param(lambda text: f"{text[:-1]} \n,{end_of(text)}\n", id="an end as a line"),
        pytest.param(lambda text: f" {text}", id="space"),
        pytest.param(lambda text: text.replace(",", ", "), id="spaces"),
    ],
)
def test_a_block_is_what_any_reader_reads(root: Path, change: Callable[[str], str]) -> None:
    path = next(p for p in sorted(root.glob("cells/*/*/rows-*")) if p.read_text().count("\n") == 4)
    key, text = path.parent.name, path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    block = sound_block(path, key)
    try:
        rows = read_rows_file(path, key)
    except BadStore:
        assert block is None
    else:
        assert block is None or [{**block.shared, **row} for row in block.rows] == rows

"""Cells that are read together give what they give one by one, damaged or not."""

import json
from pathlib import Path

import pandas as pd
import pytest

from runners.records import CELL_COLUMNS, Cell, Measurement, Status
from runners.storage import many
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
        patch.setattr(many, "_sound", lambda _: None)
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

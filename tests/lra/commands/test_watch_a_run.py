"""`lra watch` of a sweep that `lra run` runs: it has no plan and no workers."""

import json
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster.plan import HEAD
from lra.runners.records import Measurement, Status
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell


def test_cells_are_told_by_their_rows_and_holders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    crashed = Measurement(metric="time", value=None, status=Status.crashed, reason="it broke")
    for seed, row in ((0, Measurement(metric="time", value=1.0)), (1, crashed)):
        store.write(make_cell(seed), [row], (), {})
    for seed in range(4):
        store.record_in_sweep("mine", make_cell(seed).key)
    watch = ["watch", "mine", "--results", str(tmp_path)]
    held = store.claim(make_cell(2).key, title="the third")
    assert main(watch) == 3
    text = capsys.readouterr().out
    assert "sweep mine: 2 of 4 runs have ended (50%): 1 ok, 1 crashed, 1 running, 1 waiting" in text
    assert "  the third (on " in text
    assert f"it broke (lra show {make_cell(1).key})" in text
    held.release()
    for seed in (2, 3):
        store.take_from_sweep("mine", make_cell(seed).key)
    assert main([*watch, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["endings"] == {"ok": 1, "crashed": 1}
    assert main(["watch", "mien", "--results", str(tmp_path)]) == 2
    assert "'mien': did you mean 'mine'? Known sweeps" in capsys.readouterr().err
    (tmp_path / "plans" / "other").mkdir(parents=True)
    (tmp_path / "plans" / "other" / HEAD).write_text("{}")
    assert main(["watch", "zzz", "--results", str(tmp_path)]) == 2
    assert ": mine, other. For a sweep of another results folder" in capsys.readouterr().err

"""`lra dashboard`: a file for review, from a store, without a key."""

import json
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.runners.records import Measurement
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell


def test_the_file_is_written_before_anything_is_asked_of_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    store = Store(tmp_path / "results")
    cell = make_cell()
    labels = {"split": "test", "examples": "10"}
    store.write(cell, [Measurement(metric="accuracy", value=0.5, labels=labels)], [], {})
    store.record_in_sweep("mine", cell.key)
    words = ["dashboard", "--results", str(store.root), "--sweep", "mine", "--project", "own"]

    assert main([*words, "--save"]) == 2
    told = capsys.readouterr()
    assert "No API key configured" in told.err
    assert "The file is written" in told.err
    (made,) = (Path(line) for line in told.out.splitlines())
    assert made == store.root / "reports" / "mine" / "dashboard.json"
    assert json.loads(made.read_text())["project"] == "own"
    assert "quality/test_accuracy" in made.read_text()

    assert main(["dashboard", "--results", str(tmp_path / "nothing")]) == 2
    assert "lra run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("--project=a/b", r"got 'a/b'; wanted up to 128 characters, without .*%"),
        ("--entity=\udcff", r"got '\\udcff'; wanted up to 128"),
        ("--deadline=soon", "got 'soon'; wanted seconds"),
        ("--deadline=nan", "got 'nan'; wanted seconds"),
    ],
)
def test_words_that_are_none(word: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["dashboard", word])
    assert re.search(told, capsys.readouterr().err)


def test_the_package_that_it_needs_is_asked_for_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.reports.dashboard.publish.find_spec", lambda _: None)
    monkeypatch.setattr("lra.commands.dashboard.stored", lambda *_: pytest.fail("rows were read"))
    assert main(["dashboard", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install 'lra[dashboard]'")

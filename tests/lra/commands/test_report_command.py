"""Reports from a store, and from rows that were kept."""

import json
from pathlib import Path

import pandas as pd
import pytest

import lra
from lra.cli import main
from lra.results.rows import published_rows
from lra.runners.records import Measurement
from lra.runners.store import Store, read_rows
from tests.runners.storage.stored_cells import make_cell


@pytest.fixture
def results(tmp_path: Path) -> Path:
    store = Store(tmp_path / "results")
    for seed in (0, 1):
        cell = make_cell(seed, overrides=(f"seed={seed}", f"results={tmp_path}"))
        labels = {"split": "test", "examples": "10"}
        row = Measurement(metric="accuracy", value=0.25 + seed / 3, labels=labels)
        store.write(cell, [row], [], {"torch": "2"})
        store.record_in_sweep("mine", cell.key)
    return store.root


def test_python_reads_the_same_rows_and_names_what_is_damaged(results: Path) -> None:
    whole = lra.rows(results)
    pd.testing.assert_frame_equal(whole, lra.rows(str(results), "mine"))
    assert lra.table(whole).to_pandas().shape == (1, 1)
    with pytest.raises(ValueError, match="unknown sweep 'mien': did you mean 'mine'"):
        lra.rows(results, "mien")
    one = next(results.glob("cells/*/*/*.jsonl"))
    one.write_text("{")
    with pytest.warns(
        UserWarning, match=rf"excluded: {one}, line 1: the last line is incomplete"
    ) as warned:
        assert len(lra.rows(results)) == 1
    assert warned[0].filename == __file__


def test_a_report_of_a_whole_store_says_which_sweeps_it_mixes(results: Path) -> None:
    Store(results).record_in_sweep("adhoc", Store(results).cells_of("mine")[0])
    for sweep, words in (
        ([], "# Results of all sweeps: adhoc, mine"),
        (["--sweep", "adhoc"], "# Results of all runs without a named sweep (adhoc)"),
        (["--sweep", "mine"], "# Results of mine"),
    ):
        assert main(["report", "--results", str(results), *sweep, "--out", str(results / "r")]) == 0
        assert (results / "r" / "report.md").read_text().splitlines()[0] == words


def test_what_an_interrupted_sweep_has_not_finished_is_named(results: Path, capsys) -> None:
    store, folder = Store(results), results / "r"
    for name, seed in (("other", 3), ("other", 2), ("third", 3)):
        title = f"train {name} on listops, seed {seed}"
        store.record_in_sweep("mine", make_cell(seed, model=name).key, title)
    store.record_in_sweep("mine", "3fa9" * 4)  # by an lra that noted no titles
    words = ["report", "--results", str(results), "--out", str(folder)]
    told = (
        f"these runs of mine are unfinished: {'3fa9' * 4}; train other on listops, seeds 2, 3; "
        "train third on listops, seed 3; rerun the same command to resume"
    )
    for sweep in ([], ["--sweep", "mine"]):
        assert main([*words, *sweep]) == 0
        assert told in capsys.readouterr().err
        assert told in (folder / "report.md").read_text()
    next(results.glob("cells/*/*/*.jsonl")).write_text("{")
    assert main([*words, "--sweep", "mine"]) == 1  # what is damaged is no unfinished cell
    assert told in capsys.readouterr().err


def test_published_rows_give_the_same_report(results: Path, tmp_path: Path) -> None:
    common, mine = ["--title", "t"], ["--results", str(results), "--sweep", "mine"]
    for name in ("v1.5", "v1.5.jsonl"):
        assert main(["report", *mine, "--publish", str(tmp_path / "kept" / name)]) == 0
    (kept,) = (tmp_path / "kept").glob("*.jsonl")
    cells = json.loads(kept.with_suffix(".json").read_text()).values()
    assert sorted(cell["overrides"] for cell in cells) == [["seed=0"], ["seed=1"]]
    pd.testing.assert_frame_equal(
        published_rows(kept).drop(columns="created"),
        read_rows(results, "mine").drop(columns="created"),
    )
    out, again = tmp_path / "a", tmp_path / "b"
    assert main(["report", "--results", str(results), "--out", str(out), *common]) == 0
    assert main(["report", "--rows", str(kept), "--out", str(again), *common]) == 0
    assert (out / "accuracy.md").read_text() == (again / "accuracy.md").read_text()
    assert "2 seeds" in (out / "accuracy.md").read_text()


def test_published_rows_keep_configurations_apart(tmp_path: Path) -> None:
    """Else a table would be of means over different models."""
    store = Store(tmp_path / "results")
    for features, value in ((16, 0.25), (64, 0.75)):
        identity = {"seed": 0, "runner": {"name": "train"}, "mixer": {"features": features}}
        cell = make_cell(identity=identity, model="performer")
        labels = {"split": "test", "examples": "10"}
        store.write(
            cell, [Measurement(metric="accuracy", value=value, labels=labels)], [], {"a": "b"}
        )
        store.record_in_sweep("mine", cell.key)
    kept, out, again = (tmp_path / name for name in ("kept.jsonl", "a", "b"))
    common = ["--results", str(store.root)]
    assert main(["report", *common, "--sweep", "mine", "--publish", str(kept)]) == 0
    assert main(["report", *common, "--out", str(out), "--title", "t"]) == 0
    assert main(["report", "--rows", str(kept), "--out", str(again), "--title", "t"]) == 0
    text = (again / "accuracy.md").read_text()
    assert text == (out / "accuracy.md").read_text()
    assert "features=16" in text
    assert "features=64" in text


def test_an_unknown_sweep_and_an_empty_store(results: Path, tmp_path: Path, capsys) -> None:
    assert main(["report", "--results", str(results), "--sweep", "mien"]) == 2
    assert "did you mean 'mine'" in capsys.readouterr().err
    assert main(["report", "--results", str(results), "--sweep", "new"]) == 2
    assert (
        "A sweep that has just been started is listed when its plan is complete"
        in capsys.readouterr().err
    )
    Store(results).record_in_sweep("new", make_cell(5).key, "train linear on listops, seed 5")
    assert main(["report", "--results", str(results), "--sweep", "new"]) == 2
    assert f"no run of new in {results} is finished yet" in capsys.readouterr().err
    assert main(["report", "--results", str(tmp_path / "nothing")]) == 2
    assert "lra run" in capsys.readouterr().err


def test_torn_rows_name_file_and_line(tmp_path: Path, capsys) -> None:
    (tmp_path / "rows.jsonl").write_text('{"schema": 1}\n{"sch')
    assert main(["report", "--rows", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path)]) == 2
    assert "rows.jsonl, line 2" in capsys.readouterr().err


def test_what_is_no_file_of_rows_or_no_folder_is_refused(tmp_path: Path, capsys) -> None:
    table = tmp_path / "mine.csv"
    table.write_text("text,label\n")
    assert main(["report", "--rows", str(table)]) == 2
    assert (
        "mine.csv: line 1 begins with b'text,label\\n'; wanted rows as" in capsys.readouterr().err
    )
    assert main(["report", "--rows", "example", "--out", str(table)]) == 2
    assert "mine.csv is a file; name a folder" in capsys.readouterr().err

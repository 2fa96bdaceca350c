"""Data that are not there stop their own cells, and no others."""

import shutil
from pathlib import Path

import pytest

from lra.cli import main
from lra.execution import in_memory
from lra.runners.store import Store, read_rows
from lra.tasks.classification import pairs

TWO = (
    "task=listops,retrieval",
    "++for_task={listops: {task: {source: sample}}, retrieval: {task: {partial: true}}}",
    "model=identity", "optim.steps=2", "optim.warmup_steps=0", "optim.batch_size=8",
    "runner.evaluate_splits=[test]", "runner.baselines=false", "logger=none", "report=false",
    "sweep=two",
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def written(folder: Path) -> None:
    folder.mkdir(parents=True)
    for split, name in pairs.FILES.items():
        lines = [f"{pair.label}\ta\tb\t".encode() + pair.first + b"\t" + pair.second + b"\n"
                 for pair in pairs.sample_pairs(split)]  # fmt: skip
        (folder / name).write_bytes(b"".join(lines))


def test_a_missing_data_set_leaves_the_other_columns_alive(tmp_path, cache, capsys):
    words = ["run", "-m", f"results={tmp_path / 'r'}", *TWO]
    assert main(words) == 0
    rows = read_rows(tmp_path / "r")
    (lacking,) = rows[rows["status"] != "ok"].itertuples()
    assert (lacking.task, lacking.status, lacking.labels["missing"]) == (
        "retrieval", "skipped", "data",
    )  # fmt: skip
    place = cache / "downloads" / "tsv_data" / "new_aan_pairs.train.tsv"
    assert f"{place} is missing: unpack https" in lacking.reason
    assert (rows["task"] == "listops").sum() > 3
    assert f"{place} is missing" in capsys.readouterr().out

    assert main([*words, "runner.dry_run=true"]) == 0
    said = capsys.readouterr().out
    assert "the data of this run were missing; the data of this run are missing (" in said
    assert "2 runs in" in said
    assert "1 done, 1 to do" in said

    written(cache / "downloads" / "tsv_data")  # the data come, and the same command does the rest
    assert main(words) == 0
    found = read_rows(tmp_path / "r", "two")
    assert set(found["status"]) == {"ok"}
    store = Store(tmp_path / "r")
    assert len(store.cells_of("two")) == 2
    assert store.unfinished("two") == []
    shutil.rmtree(store.root / "cells")  # as if it had been interrupted before the first had ended
    assert store.unfinished("two") == [
        f"train identity on {task}, seed 0" for task in ("listops", "retrieval")
    ]


def test_alone_it_is_an_error_before_anything_runs(tmp_path, capsys):
    words = ["task=retrieval", f"task.path={tmp_path / 'nowhere'}", f"results={tmp_path / 'r'}"]
    assert main(["run", *words, "logger=none"]) == 2
    assert "new_aan_pairs.train.tsv is missing: unpack" in capsys.readouterr().err
    assert not list((tmp_path / "r" / "cells").rglob("*.jsonl"))


def test_a_torn_file_likewise(tmp_path, cache):
    written(cache / "downloads" / "tsv_data")
    file = cache / "downloads" / "tsv_data" / "new_aan_pairs.eval.tsv"
    file.write_bytes(file.read_bytes()[:-40])
    assert main(["run", "-m", f"results={tmp_path / 'r'}", *TWO]) == 0
    rows = read_rows(tmp_path / "r")
    (lacking,) = rows[rows["status"] != "ok"].itertuples()
    assert str(file) in lacking.reason


def test_a_preset_lists_its_cells_where_the_data_decide_the_vocabulary(tmp_path, cache, capsys):
    words = ["+experiment=compressive", "scale=tiny", f"results={tmp_path / 'r'}"]
    words += ["runner.baselines=false"]
    assert main(["run", *words, "runner.dry_run=true"]) == 0
    enwik8, pg19, told, files, last = capsys.readouterr().out.splitlines()
    assert "on enwik8, seed 0, protocol compressive: never run" in enwik8
    assert (
        "on pg19, seed 0, protocol compressive: never run; the data of this run are missing ("
        in pg19
    )
    assert f"{cache / 'downloads' / 'pg19'} is missing" in told
    assert files.startswith(f"enwik8 is not prepared in {cache}")
    assert last.startswith("2 runs in ")
    assert main(["plan", *words]) == 0
    assert "2 runs in " in capsys.readouterr().out


TEXT = (
    "task=text8", "task.source=sample", "task.length=256", "model=linear", "optim.steps=2",
    "optim.warmup_steps=0", "optim.batch_size=2", "model.backbone.width=16",
    "model.backbone.positions=none", "logger=none", "report=false", "sweep=gone",
)  # fmt: skip
LONGER = ("runner=extrapolate", "runner.factors=[0.5,1]", "runner.examples=null")


@pytest.mark.parametrize("what", ["the folder", "a file"])
def test_data_that_vanish_under_a_run_are_waited_for(what, tmp_path, cache, capsys, monkeypatch):
    """The training ends so, and what starts from it, and the same command does both again."""

    def vanishing(*given):
        prepare(*given)
        (folder,) = cache.glob("text8-*")
        if what == "the folder":
            shutil.rmtree(folder)
        else:
            (folder / "train.tokens.npy").unlink()

    prepare = in_memory._prepare
    words = ["run", *TEXT, *LONGER, f"results={tmp_path / 'r'}"]
    with monkeypatch.context() as patch:
        patch.setattr(in_memory, "_prepare", vanishing)
        assert main(words) == 0
    rows = read_rows(tmp_path / "r")
    assert sorted(rows["runner"]) == ["extrapolate", "train"]
    assert set(rows["status"]) == {"skipped"}
    assert [labels["missing"] for labels in rows["labels"]] == ["data", "data"]
    assert all("lra data prepare" in each or "prepare again" in each for each in rows["reason"])
    shutil.rmtree(cache)
    capsys.readouterr()
    assert main([*words, "runner.dry_run=true"]) == 0
    assert "0 done, 2 to do" in capsys.readouterr().out
    assert main(words) == 0
    assert set(read_rows(tmp_path / "r")["status"]) == {"ok"}

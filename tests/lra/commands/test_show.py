import json
import os
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest

from lra.cli import main
from lra.commands import show
from lra.runners.records import Measurement, Status
from lra.runners.store import Store
from tests.runners.storage.stored_cells import make_cell


def cell(**columns):
    return make_cell(
        identity={"columns": columns, "rate": 1e-3},
        config={"model": {"name": "linear"}, "optim": {"steps": 400}},
        overrides=("+experiment=quickstart", "runner=scaling", "model=linear", "x='{a: 1}'"),
        **{"runner": "scaling", "mode": "step", **columns},
    )


@pytest.fixture
def results(tmp_path):
    store = Store(tmp_path / "results")
    rows = [
        Measurement(metric="time", value=0.0123456789, samples=(0.01, 0.02)),
        Measurement(
            metric="reference_time",
            status=Status.out_of_memory,
            reason="wanted 9 GiB of 8",
            labels={"reference": "softmax"},
        ),
        Measurement(metric="peak_tensor_bytes", value=326185000.0),
        Measurement(metric="accuracy", value=0.17, model="baseline/majority"),
        Measurement(metric="train_loss", value=2.0, step=50),
    ]
    store.write(cell(), rows, (), {"python": "3.11"})
    return tmp_path / "results"


def test_configuration_rows_and_command(results, capsys):
    assert main(["show", cell().key[:6], "--results", str(results), "--all"]) == 0
    text = capsys.readouterr().out
    run, status, rerun, *_ = text.splitlines()
    assert cell().key in run
    assert status == "status    1 of 5 rows out_of_memory: wanted 9 GiB of 8"
    assert rerun.startswith("rerun     lra run --run +experiment=quickstart")
    assert "    steps: 400" in text
    assert "0.0123457" in text
    assert "out_of_memory: wanted 9 GiB of 8" in text
    assert "reference=softmax" in text
    assert "326,185,000" in text
    assert "baseline/majority" in text
    assert "train_loss" not in text
    assert "to see 1 more row of training steps" in text
    assert "python: '3.11'" in text


def test_without_a_key_the_cell_stored_last(results, capsys):
    scores = [
        Measurement(metric="accuracy", value=0.5, labels={"split": "validation"}),
        Measurement(metric="accuracy", value=0.25, labels={"split": "test"}),
        Measurement(metric="loss", value=1.5, labels={"split": "test"}),
        Measurement(metric="perplexity", value=4.5, labels={"split": "test"}),
    ]
    last = cell(runner="train", seed=7)
    file = Store(results).write(last, scores, (), {})
    later = file.stat().st_mtime + 10
    os.utime(file, (later, later))
    assert main(["show", "--results", str(results)]) == 0
    text = capsys.readouterr().out
    assert last.key in text
    assert "status    ok, 4 rows" in text
    test, validation, *_ = text.splitlines()
    hint = "the baselines are not measured: `lra run runner=certify task=listops` adds them"
    assert test == f"score     test perplexity per token 4.50 ({hint})"
    assert validation == "          validation accuracy 50.0%"


def test_a_folder_without_cells_has_no_last_one(tmp_path, capsys):
    assert main(["show", "--results", str(tmp_path)]) == 2
    assert "has rows yet" in capsys.readouterr().err


def test_curves_are_shown_where_asked_for(results, capsys):
    assert main(["show", cell().key, "--results", str(results), "--curves"]) == 0
    assert "step=50" in capsys.readouterr().out


def test_json_holds_everything(results, capsys):
    assert main(["show", cell().key, "--results", str(results), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["command"] == show.repeat(cell())
    assert [row["metric"] for row in found["rows"]][:2] == ["time", "reference_time"]
    assert len(found["rows"]) == 5
    assert found["config"]["optim"] == {"steps": 400}


def test_the_command_narrows_a_scaling_run_to_the_cell():
    words = shlex.split(show.repeat(cell()))
    assert words == [
        "lra", "run", "--run", "+experiment=quickstart", "runner=scaling", "model=linear",
        "x='{a: 1}'",
        "runner.modes=[step]", "runner.lengths=[512]", "results=results-repeated",
    ]  # fmt: skip


def test_the_command_replaces_what_it_sets_itself():
    overrides = ("runner.lengths=[256,512]", "++runner.modes=[step]", "results=a", "seed=1")
    crowded = replace(cell(mode="forward"), overrides=overrides)
    words = shlex.split(show.repeat(crowded, results="b"))
    assert words[2:] == ["seed=1", "runner.modes=[forward]", "runner.lengths=[512]", "results=b"]


def test_a_training_cell_is_repeated_by_its_own_words():
    words = shlex.split(show.repeat(cell(runner="train", mode="train")))
    assert words[2:-1] == ["--run", *cell().overrides]


def test_an_unknown_cell_and_a_missing_folder_are_answered(results, capsys, tmp_path):
    assert main(["show", "zzzz", "--results", str(results)]) == 2
    text = capsys.readouterr().err
    assert "'zzzz'" in text
    assert cell().key in text
    assert main(["show", "zzzz", "--results", str(tmp_path / "absent")]) == 2
    assert "set its path by --results DIR" in capsys.readouterr().err


def test_an_ambiguous_beginning_lists_the_cells(results, capsys):
    store = Store(results)
    for seed in range(1, 20):
        store.write(cell(seed=seed), [Measurement(metric="time", value=1.0)], (), {})
    keys = sorted(file.parent.name for file in results.glob("cells/*/*/cell.json"))
    shared = next(a for a, b in pairwise(keys) if a[0] == b[0])
    assert main(["show", shared[0], "--results", str(results)]) == 2
    assert shared in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "+experiment=transfer task.source=sample model=linear",
        "+experiment=quickstart model=linear,fnet runner=train,certify",
        "+experiment=approximation model=yoso runner.lengths=[128]",
        "-m +protocol=s4 task=text task.source=sample model=linear,fnet optim.steps=20",
    ],
)
def test_the_command_leads_to_the_cell(line):
    """Also to the training that a cell starts from, which is no combination of the sweep."""
    from lra.composition.hydra_entry import entries
    from lra.sweep.cell_list import build

    for planned in build(entries(line.split())).planned:
        words = shlex.split(show.repeat(planned.cell))[2:]
        again = build(entries(words)).planned
        assert planned.cell.key in [each.cell.key for each in again], words


def placed(**place):
    overrides = ("model=ema", "plugins=[acme_mixer]")
    return replace(cell(), overrides=overrides, sources={"models.mixer": "00ff"}, place=place)


def test_where_files_of_ones_own_lie_is_kept_and_moves_no_key(tmp_path, capsys):
    other = tmp_path / "repository"
    other.mkdir()
    kept = placed(folder=str(other), config_dir="my_conf")
    assert kept.key == cell().key
    Store(tmp_path / "results").write(kept, [Measurement(metric="time", value=1.0)], (), {"a": "b"})
    assert main(["show", kept.key, "--results", str(tmp_path / "results")]) == 0
    text = capsys.readouterr().out
    assert f"rerun     cd {other} && lra run --config-dir=my_conf model=ema" in text
    assert "00ff" not in text
    other.rmdir()
    assert main(["show", kept.key, "--results", str(tmp_path / "results")]) == 0
    _, _, line, moved, *_ = capsys.readouterr().out.splitlines()
    assert str(other) in moved
    assert line.startswith("rerun     lra run --config-dir=my_conf model=ema")


def test_in_the_same_folder_the_command_is_as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = placed(folder=str(tmp_path), config_dir="my conf")
    words = shlex.split(show.repeat(kept))
    assert words[:3] == ["lra", "run", "--config-dir=my conf"]


@pytest.mark.parametrize("place", [None, 3, [], {"folder": 7}, {"config_dir": None}])
def test_an_older_or_odd_place_is_no_hindrance(place):
    assert show.origin_of({} if place is None else {"place": place}) == {}

"""A dry run says of each cell whether it is done, and why it is not."""

import json
import re
from pathlib import Path

import pytest

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.runners.records import Measurement, Status
from lra.runners.storage.fingerprint import changes, digests, fingerprint, summary
from lra.runners.store import Store
from lra.runners.training.checkpoint import Checkpoints
from lra.sweep.cell_list import build
from lra.sweep.estimate import format_duration

WORDS = (
    "task=listops",
    "task.source=sample",
    "optim.steps=6",
    "optim.warmup_steps=0",
    "logger=none",
)


def planned(results: Path, *words: str):
    return build(entries([*WORDS, f"results={results}", *words])).planned


def line_of(results: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["run", *WORDS, f"results={results}", "runner.dry_run=true", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("1 run in ")
    return lines[0]


@pytest.fixture
def cell(tmp_path: Path):
    return planned(tmp_path / "results", "model=linear")[0].cell


def write(root: Path, cell, status: Status = Status.ok, **changed: object):
    from dataclasses import replace

    row = Measurement(metric="accuracy", value=0.5, labels={"split": "test"})
    if status is not Status.ok:
        row = Measurement(metric="accuracy", status=status, reason="too slow")
    Store(root).write(replace(cell, **changed), [row], (), {"python": "3.11"})


def test_never_run_and_done(tmp_path, capsys, cell) -> None:
    results = tmp_path / "results"
    assert "to do    train linear on listops, seed 0: never run" in line_of(
        results, capsys, "model=linear"
    )
    assert not results.exists()
    write(results, cell)
    assert line_of(results, capsys, "model=linear").endswith(
        "done     train linear on listops, seed 0"
    )


def test_a_dry_run_of_one_small_cell_says_how_long(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("lra.sweep.estimate.LISTED_S", 600.0)  # of a busy machine, too
    line = line_of(tmp_path, capsys, "model=linear", "hardware=h100")
    assert re.search(r"never run; \d+ s$", line)


def test_a_dry_run_has_the_hours_of_a_plan_and_every_cell_fits(
    tmp_path, capsys, monkeypatch
) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("lra.sweep.estimate.LISTED_S", 600.0)  # of a busy machine, too
    few = ("task=listops,image", "model=s4,lru,sgconv")  # counting all takes a minute
    words = ["+experiment=lra_modern", *few, "hardware=h100", f"results={tmp_path / 'results'}"]
    assert main(["run", *words, "runner.dry_run=true"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert main(["plan", *words, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["total"]["unknown"] == planned["total"]["does_not_fit"] == 0
    assert "unknown" not in last
    by_key = {line.split()[0]: line for line in lines}
    for cell in planned["cells"]:
        line = by_key[cell["cell"]]
        assert f", protocol {cell['protocol']}: " in line
        assert line.endswith(f"; {format_duration(3600 * cell['hours'])}")
    trained = [cell for cell in planned["cells"] if cell["runner"] == "train"]
    protocols = {(cell["model"], cell["protocol"]) for cell in trained}
    assert protocols == {("s4", "s4_v3"), ("lru", "lru"), ("sgconv", "sgconv")}


def test_a_sweep_lists_what_is_refused_though_there_was_no_time(tmp_path, capsys, monkeypatch):
    for limit in ("COUNTING_S", "LISTED_S"):
        monkeypatch.setattr(f"lra.sweep.estimate.{limit}", 0.0)
    words = ["-m", *WORDS, f"results={tmp_path}", "runner.dry_run=true"]
    words += ["model=linear,performer,fnet", "model.backbone.padding=masked"]
    words += ["runner.baselines=false"]
    assert main(["run", *words]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["to", "to", "refused"]
    assert "3 to do; 1 run will be refused" in last


def test_changed_code_is_named_by_module(tmp_path, capsys, cell) -> None:
    results = tmp_path / "results"
    old = dict(cell.sources) | {"models.families.linear": "0" * 64, "models.gone": "1" * 64}
    del old["models.backbone.stack"]
    write(results, cell, fingerprint=summary(old), sources=old)
    line = line_of(results, capsys, "model=linear")
    assert (
        "code changed since it ran (models.backbone.stack (new), models.families.linear, "
        "models.gone (gone))" in line
    )


def test_older_cells_have_no_record_of_their_sources(tmp_path, capsys, cell) -> None:
    results = tmp_path / "results"
    write(results, cell, fingerprint="0123456789ab", sources={})
    assert "code changed since it ran (lra did not record which files changed)" in line_of(
        results, capsys, "model=linear"
    )
    (file,) = results.glob("cells/*/*/environment-*.json")
    for damage in ("", "[]", '{"sources": 3}', '{"sources": {"a": []}}'):
        file.write_text(damage)
        assert "code changed since it ran" in line_of(results, capsys, "model=linear")


def test_failed_and_asked_for_again(tmp_path, capsys, cell) -> None:
    results = tmp_path / "results"
    write(results, cell, Status.timeout)
    assert "done (timeout)" in line_of(results, capsys, "model=linear")
    line = line_of(results, capsys, "model=linear", "runner.retry=[timeout]")
    assert "it ended as timeout, and runner.retry repeats such runs; " in line


def test_damaged_rows(tmp_path, capsys, cell) -> None:
    results = tmp_path / "results"
    write(results, cell)
    (file,) = results.glob("cells/*/*/rows-*.jsonl")
    file.write_text(file.read_text()[:-9])
    assert "the stored rows of this run are damaged: " in line_of(results, capsys, "model=linear")


def test_a_checkpoint_says_where_it_goes_on(tmp_path, capsys, cell) -> None:
    results = tmp_path / "results"
    folder = Store(results).checkpoint_folder(cell)
    Checkpoints(folder).save({"step": 4})
    assert "training resumes at step 4; " in line_of(results, capsys, "model=linear")
    (folder / "resume.pt").write_bytes(b"torn")
    assert "training resumes at its last checkpoint; " in line_of(results, capsys, "model=linear")


def test_a_claim_and_a_training_are_named(tmp_path, capsys) -> None:
    results = tmp_path / "results"
    words = ["runner=extrapolate", "model=linear"]
    first, second = planned(results, *words)
    with Store(results).claim(second.cell.key):
        assert main(["run", *WORDS, f"results={results}", "runner.dry_run=true", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        "never run; this run is claimed, because another sweep is working on it; this run starts "
        f"after the training {first.cell.key}; the time of this run is unknown (Extrapolate does "
    ) in lines[1]
    write(results, first.cell, Status.diverged)
    assert main(["run", *WORDS, f"results={results}", "runner.dry_run=true", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "this run will get the status skipped (" in lines[1]


def test_weights_that_are_gone_are_made_again(tmp_path, capsys) -> None:
    results = tmp_path / "results"
    first, _ = planned(results, "runner=extrapolate", "model=linear")
    write(results, first.cell)
    words = ("runner=extrapolate", "model=linear", "runner.dry_run=true")
    assert main(["run", *WORDS, f"results={results}", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "to do" in lines[0]
    assert "the weights of this run are missing, and " in lines[0]


def test_what_is_kept_of_the_sources_is_what_the_fingerprint_hashes(tmp_path, cell) -> None:
    modules = ["models.backbone.model", "runners.measures.train"]
    assert summary(digests(modules)) == fingerprint(modules)
    assert summary(cell.sources) == cell.fingerprint
    write(tmp_path, cell)
    (file,) = tmp_path.glob("cells/*/*/environment-*.json")
    assert json.loads(file.read_text())["sources"] == dict(cell.sources)
    assert changes(cell.sources, cell.sources) == []


def test_what_was_not_counted_is_said_once_and_runs_are_told_from_cells(
    tmp_path, capsys, monkeypatch
) -> None:
    for limit in ("COUNTING_S", "LISTED_S"):
        monkeypatch.setattr(f"lra.sweep.estimate.{limit}", 0.0)
    words = ["model=linear,softmax", "runner=scaling", "runner.lengths=[64,128]", "logger=none"]
    assert main(["run", "-m", *words, f"results={tmp_path}", "runner.dry_run=true"]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert [line.endswith(": never run") for line in lines] == [True] * 8
    assert "; each of 2 configurations has a run for each mode, length and training" in last
    assert "`lra plan` computes" in last

"""Baselines beside the trainings of a sweep: once for a task, under the key they have alone."""

from pathlib import Path

import pytest
from small_sweeps import run

from lra.cli import main
from lra.composition.hydra_entry import entries
from lra.results.repeat import repeat
from lra.runners.store import read_rows
from lra.sweep.sweep import PlannedCell
from lra.tuning.declaration import declared_search
from lra.tuning.sweep_plan import plan_sweep

TASK = (
    "task=mqar", "task.length=16", "task.pairs=2", "task.vocabulary=32", "task.train_examples=200",
    "task.validation_examples=40", "task.test_examples=40",
)  # fmt: skip
SMALL = (
    *TASK, "model.backbone.width=16", "model.backbone.depth=1", "optim.steps=2",
    "optim.warmup_steps=0", "optim.batch_size=8", "logger=none",
)  # fmt: skip
MANY = ("-m", "model=linear,identity", "seed=0,1")


def cells(*words: str) -> list[PlannedCell]:
    return [*plan_sweep(entries([*SMALL, *words]), elsewhere=False)[0].planned]


def of(runner: str, found: list[PlannedCell]) -> list[PlannedCell]:
    return [each for each in found if each.cell.columns["runner"] == runner]


def test_a_sweep_has_them_once_and_under_their_own_key() -> None:
    found = cells(*MANY)
    (beside,) = of("certify", found)
    assert found[0] is beside  # the cheap kind first
    assert len(of("train", found)) == 4
    (alone,) = cells("runner=certify")
    assert beside.cell.key == alone.cell.key
    assert beside.cell.fingerprint == alone.cell.fingerprint
    assert (beside.beside, alone.beside) == (True, False)
    (asked,) = of("certify", cells(*MANY, "runner=train,certify"))
    assert asked.cell.key == alone.cell.key
    assert not asked.beside


@pytest.mark.parametrize(
    ("words", "count"),
    [
        ((), 0),
        (("runner.baselines=true",), 1),
        (("-m",), 1),
        (("-m", "runner.baselines=false"), 0),
        (("-m", "task.pairs=2,3"), 2),
        (("-m", "runner.evaluate_splits=[]"), 0),
        (("-m", "runner=scaling", "runner.lengths=[8]"), 0),
    ],
)
def test_where_they_are(words: tuple[str, ...], count: int) -> None:
    assert len(of("certify", cells(*words))) == count


def test_an_agent_of_a_sweep_elsewhere_has_its_one_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    assert len(cells("-m")) == 1


def test_keys_of_trainings_are_those_without_them() -> None:
    keys = {each.cell.key for each in cells(*MANY, "runner.baselines=false")}
    assert keys == {each.cell.key for each in of("train", cells(*MANY))}
    assert len(keys) == 4


def test_they_are_of_the_split_that_models_are_ranked_on() -> None:
    (test,), (validation,) = (
        of("certify", cells("-m", f"runner.evaluate_splits=[{splits}]"))
        for splits in ("validation,test", "validation")
    )
    assert test.run.config["runner"]["split"] == "test"
    assert validation.run.config["runner"]["split"] == "validation"
    (alone,) = cells("runner=certify", "runner.split=validation")
    assert validation.cell.key == alone.cell.key
    assert "runner=certify runner.split=validation" in repeat(validation.cell)


def test_limits_and_processes_are_their_own() -> None:
    usual, short, long = (
        of("certify", cells("-m", *words))[0].run.control.timeout_s
        for words in ((), ("runner.timeout_s=60",), ("runner.timeout_s=6000",))
    )
    assert (usual, short, long) == (600, 60, 600)
    (again,) = of("certify", cells("-m", "runner.retry=[timeout]"))
    assert again.run.control.retry == ["timeout"]
    (one,) = of("certify", cells("-m", "hardware.processes=2"))
    assert one.run.hardware.processes == 1
    assert "hardware.processes" not in repeat(one.cell)


def test_a_search_has_those_of_both_splits_from_the_beginning() -> None:
    search = (
        "search=halton", "search.trials=2", "optim.peak_learning_rate=interval(1e-3, 1e-2)",
        "sweep=s",
    )  # fmt: skip
    found = of("certify", cells(*search))
    assert [each.run.config["runner"]["split"] for each in found] == ["validation", "test"]
    assert not any("trial" in each.run.config.get("about", {}) for each in found)
    (alone,) = of("certify", cells(*search, "search.final_seeds=[]"))
    assert alone.run.config["runner"]["split"] == "validation"
    record = declared_search(entries([*SMALL, *search]))
    assert declared_search(entries([*SMALL, *search, "runner.baselines=false"])).arms == record.arms


def test_a_dry_run_says_that_they_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    dry = (*SMALL, *MANY, "runner.dry_run=true")
    said = "a run of baselines takes at most 10 min, and runner.baselines=false skips it"
    assert main(["run", *dry]) == 0
    listed = capsys.readouterr().out
    assert "baselines of mqar: never run; 5 s" in listed
    assert said in listed
    assert "5 runs in" in listed
    assert main(["run", *dry, "runner.baselines=false"]) == 0
    assert "baselines" not in capsys.readouterr().out


@pytest.mark.parametrize(("words", "there"), [((), False), (("-m",), True), (("seed=0,1",), True)])
def test_workers_have_them_where_a_run_has_them(
    words: tuple[str, ...], there: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", *SMALL, *words, "runner.dry_run=true"]) == 0
    assert ("baselines of mqar" in capsys.readouterr().out) is there


def test_the_table_of_scores_has_them_and_ranks_nobody_below(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", *SMALL, *MANY, f"results={tmp_path}"]
    assert main(words) == 0
    assert "[1/5] baselines of mqar: majority" in capsys.readouterr().out
    table = (tmp_path / "reports/adhoc/accuracy.md").read_text(encoding="utf-8")
    assert "| last value | 50.0" in table
    assert (
        "no ranks if its best model is not significantly better than chance and the base" in table
    )
    assert main(words) == 0
    assert "5 of 5 runs are finished already" in capsys.readouterr().out


def test_a_task_without_baselines_is_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare_task.py").write_text(
        "from lra.tasks.diagnostics.mqar import MQAR\n\n\nclass Bare(MQAR):\n    baselines = None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = (*SMALL, "-m", "seed=0,1", "task.class_path=bare_task.Bare", "plugins=[bare_task]")
    named = ("task.name=bare", f"results={tmp_path / 'r'}", "report=false")
    assert main(["run", *words, *named]) == 0
    rows = read_rows(tmp_path / "r")
    (refused,) = rows[rows["runner"] == "certify"].to_dict("records")
    assert refused["status"] == "unsupported"
    assert "computes no baselines" in refused["reason"]
    assert set(rows[rows["runner"] == "train"]["status"]) == {"ok"}


def test_a_training_that_fails_beside_them_alone_fails_the_command(tmp_path: Path) -> None:
    limit = ("-m", "model=identity", "runner.timeout_s=0.05", "runner.baselines=true")
    assert run(tmp_path, *limit) == 1
    assert set(read_rows(tmp_path)["status"]) == {"timeout"}
    assert read_rows(tmp_path)["cell"].nunique() == 2

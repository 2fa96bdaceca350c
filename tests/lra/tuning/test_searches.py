"""Searches that train: grown, transferred, read back; tests/campaign kills and shares one."""

import json
from pathlib import Path
from typing import Any

import pytest

import lra
from lra.cli import main
from lra.errors import ConfigError
from lra.runners.store import Store, read_rows

RATE = "optim.peak_learning_rate"
WORDS = (
    "search=halton", "search.trials=3", "search.rungs=[0.5]", "search.keep=0.5",
    "search.final_seeds=[1]", "task=mqar", "task.validation_examples=40", "task.test_examples=40",
    "task.train_examples=200", "task.vocabulary=32", "task.length=16", "task.pairs=2",
    "model=linear,identity", "model.backbone.width=16", "model.backbone.depth=1",
    "model.backbone.feed_forward_width=16", "optim.steps=8", "optim.warmup_steps=1",
    "optim.batch_size=8", "logger=none", "report=false", "sweep=s",
    f"{RATE}=tag(log, interval(1e-3, 1e-1))",
)  # fmt: skip


def run(results: Path, *words: str) -> int:
    return main(["run", *WORDS, f"results={results}", *words])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the results of a search that nobody disturbed."""
    results = tmp_path_factory.mktemp("whole") / "r"
    assert run(results) == 0
    return results


def test_what_a_search_leaves(whole: Path) -> None:
    rows = read_rows(whole, "s")
    chosen = rows[rows["metric"] == "chosen_trial"]
    assert sorted(chosen["model"]) == ["identity", "linear"]
    trials = rows[rows["metric"] == "trial_score"]
    assert len(trials) == 2 * (4 + 3)
    for _, row in trials.iterrows():
        assert json.loads(row["labels"]["options"])[RATE] > 0
        assert row["step"] == int(row["labels"]["trial"])
    steps = rows[rows["metric"] == "trial_steps"]
    assert {(row["labels"]["rung"], row["value"]) for _, row in steps.iterrows()} == {
        ("0.5", 4.0), ("", 8.0),
    }  # fmt: skip
    places = {Store(whole).cell(key)["config"].get("about", {}).get("trial") for key in
              rows["cell"][rows["runner"] == "train"].unique()}  # fmt: skip
    assert {"s/0/0/0.5", "s/0/3/0.5", "s/0/0/"} < places
    assert None in places  # of finals
    scores = rows[(rows["runner"] == "train") & (rows["metric"] == "accuracy")]
    tested = scores[[labels.get("split") == "test" for labels in scores["labels"]]]
    assert {labels["tuned"] for labels in tested["labels"]} == {"s"}
    assert {labels["trial"] for labels in tested["labels"]} >= {"0"}
    assert set(tested["seed"]) == {1}
    assert len(rows[rows["metric"] == "trial_multiply_adds"]) == len(trials)


def test_a_choice_is_shown_with_its_trials(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read_rows(whole, "s")
    chosen = rows[(rows["metric"] == "chosen_trial") & (rows["model"] == "linear")]
    capsys.readouterr()
    assert main(["show", chosen["cell"].iloc[0], f"--results={whole}"]) == 0
    said = capsys.readouterr().out
    assert said.count("trial_score") == 4 + 3
    assert "--curves" not in said


def test_it_is_not_repeated_and_a_longer_one_adds_to_it(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(whole) == 0
    assert "begun" not in capsys.readouterr().out
    before = {path.name for path in (whole / "sweeps" / "s").iterdir()}
    assert run(whole, "search.trials=4") == 0
    out = capsys.readouterr().out
    keys = {path.name for path in (whole / "sweeps" / "s").iterdir()} - before
    begun = [line for line in out.splitlines() if line.endswith("begun")]
    assert len(begun) == len(keys)
    store = Store(whole)
    rungs = [store.cell(key)["config"]["runner"].get("until_step") for key in keys]
    assert rungs.count(4) == 2  # a trial of each arm
    assert (read_rows(whole, "s")["metric"] == "chosen_trial").sum() >= 2


def test_a_dry_run_and_a_plan_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "r", "runner.dry_run=true") == 0
    said = capsys.readouterr().out
    assert "10 runs" in said  # eight trials, and the baselines of two splits
    assert "more runs will start" in said
    assert main(["plan", *WORDS, f"results={tmp_path / 'r'}"]) == 0
    assert (
        "The search starts 12 more runs after it has compared these runs on validation"
        in capsys.readouterr().out
    )
    assert not (tmp_path / "r").exists()


def test_what_a_search_will_be_marked_with_is_told_before_it_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("before any cell")

    monkeypatch.setattr("lra.execution.in_memory.execute", refuse)
    words = [
        *WORDS, f"results={tmp_path / 'r'}", "search.final_seeds=[0]",
        "search.for_model.linear.model.backbone.dropout=choice(0.0,0.1)",
    ]  # fmt: skip
    for command, code in ((["plan"], 0), (["run", "runner.dry_run=true"], 0), (["run"], 2)):
        assert main([*command, *words]) == code
        said = capsys.readouterr()[code and 1]
        assert "search: seeds reused: seed 0 was used both to choose and to score" in said
        assert "(1, 2); an arm with more options has no more trials" in said


def test_a_choice_is_transferred_with_what_differs(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w for w in WORDS if not w.startswith((RATE, "sweep=", "search."))]
    there = [*words, "search.from=s", "search.final_seeds=[1]", f"results={whole}", "model=linear"]
    assert main(["run", *there, "sweep=t", "task.length=24", "optim.batch_size=4"]) == 0
    rows = read_rows(whole, "t")
    trained = rows[rows["runner"] == "train"]
    scores = trained[(trained["metric"] == "accuracy") & trained["step"].isna()]
    assert {labels["trial"] for labels in scores["labels"]} >= {"0"}
    for labels in scores["labels"]:
        assert labels["tuned"] == "s"
        assert labels["transferred"] == "task.length=24, not 16; optim.batch_size=4, not 8"
    for more, said in (
        (["sweep=s"], "need another name"),
        (["sweep=u", "search.from=nothing"], "has no search of this name"),
        (["sweep=u", "model=fnet"], "has not chosen options for this model yet"),
        (["sweep=u", f"{RATE}=interval(1e-3, 1)"], "searches nothing: remove the ranges"),
        (["sweep=u", "search.for_model.linear.optim.clip=choice(1, 2)"], "remove the ranges"),
        (["sweep=u", "seed=7"], "search.seeds and search.final_seeds"),
        (["sweep=u", "runner.evaluate_splits=[test]"], "the search itself sets this option"),
    ):
        capsys.readouterr()
        assert main(["run", *there, *more]) == 2
        assert said in capsys.readouterr().err


def test_python(whole: Path) -> None:
    words = [word for word in WORDS if not word.startswith(("search", RATE))]
    found = lra.search(
        [*words, f"results={whole}"],
        params={RATE: "tag(log, interval(1e-3, 1e-1))"},
        trials=4,
        rungs=[0.5],
        keep=0.5,
        final_seeds=[1],
    )
    assert found.done.exit_code == 0
    trials = found.trials
    assert [*trials.columns] == [
        "arm", "study", "trial", "rung", "options", "score", "status", "cell", "steps", "seconds",
    ]  # fmt: skip
    assert all([*options] == [RATE] for options in trials["options"])
    assert set(found.chosen) == {"linear mqar", "identity mqar"}
    assert all(1e-3 <= options[RATE] <= 1e-1 for options in found.chosen.values())
    with pytest.raises(ValueError, match="unknown kind 'window'"):
        found.figure("window")


def test_a_sampler_proposes_from_what_is_stored(tmp_path: Path) -> None:
    words = ("search=tpe", "search.rungs=[]", "search.parallel=1", "model=identity")
    proposed = {}
    for name, trials in (("grown", (1, 3)), ("whole", (3,))):
        for count in trials:
            assert run(tmp_path / name, *words, f"search.trials={count}") == 0
        (record,) = (tmp_path / name).glob("searches/*/search.json")
        (proposed[name],) = json.loads(record.read_text())["points"].values()
    assert proposed["grown"] == proposed["whole"]
    assert len({rate for (rate,) in proposed["whole"]}) == 3


def test_a_diverged_trial_and_a_refused_arm_are_rows(tmp_path: Path) -> None:
    words = [w for w in WORDS if not w.startswith(("search.", RATE, "model=", "model.backbone.w"))]
    assert main(
        ["run", *words, "search.trials=2", "search.final_seeds=[]", f"results={tmp_path / 'r'}",
         "model=linear", "model.backbone.heads=choice(2, 3)", "model.backbone.width=16"]
    ) == 0  # fmt: skip
    rows = read_rows(tmp_path / "r", "s")
    trials: dict[Any, Any] = {}
    for _, row in rows[rows["metric"] == "trial_score"].iterrows():
        trials[json.loads(row["labels"]["options"])["model.backbone.heads"]] = row["status"]
    assert trials == {2: "ok", 3: "unsupported"}

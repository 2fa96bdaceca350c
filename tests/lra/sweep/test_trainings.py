"""Runners that start from trained weights: trained once, used again, and missed with a reason."""

from pathlib import Path

import pytest

from lra.cli import main
from lra.runners.store import read_rows

TINY = (
    "task=text8",
    "task.source=sample",
    "task.length=2048",
    "model=linear",
    "model.backbone.width=16",
    "model.backbone.positions=none",
    "optim.steps=2",
    "optim.warmup_steps=0",
    "optim.batch_size=2",
    "logger=none",
    "report=false",
)
LONGER = ("runner=extrapolate", "runner.factors=[0.5,1]", "runner.examples=null")
LOOK = ("runner=span", "runner.examples=1", "runner.queries=1", "runner.measures=[attention]")


def run(results: Path, *words: str) -> int:
    return main(["run", *TINY, f"results={results}", *words])


def cells(results: Path) -> dict[str, list[str]]:
    rows = read_rows(results)
    return {str(runner): sorted(set(part["cell"])) for runner, part in rows.groupby("runner")}


def weights(results: Path) -> list[Path]:
    return sorted(results.glob("cells/*/*/checkpoint-*/weights.pt"))


def test_a_training_serves_every_runner_and_is_made_again_where_its_weights_are_gone(
    tmp_path: Path, capsys
) -> None:
    assert run(tmp_path, *LONGER) == 0
    assert "[2/2]" in capsys.readouterr().out
    assert {runner: len(found) for runner, found in cells(tmp_path).items()} == {
        "extrapolate": 1, "train": 1,
    }  # fmt: skip
    rows = read_rows(tmp_path)
    assert set(rows["status"]) == {"ok"}
    tested = rows[[dict(labels).get("split") == "test" for labels in rows["labels"]]]
    scores = tested[tested["metric"].isin(["accuracy", "loss", "bits_per_character"])]
    own = scores[scores["runner"] == "train"].set_index("metric")["value"].to_dict()
    factors = [dict(labels).get("factor") for labels in scores["labels"]]
    at_one = scores[[factor == "1" for factor in factors]].set_index("metric")["value"].to_dict()
    assert own == at_one

    # another runner starts from the same training
    assert run(tmp_path, *LOOK) == 0
    assert "[1/1]" in capsys.readouterr().out
    assert len(cells(tmp_path)["train"]) == 1
    (file,) = weights(tmp_path)
    trained = file.read_bytes()

    # without its weights it is trained again, to the same ones; what is complete needs none
    file.unlink()
    assert run(tmp_path, *LONGER) == 0
    assert not weights(tmp_path)
    capsys.readouterr()
    assert run(tmp_path, *LOOK, "runner.queries=2") == 0
    out = capsys.readouterr().out
    assert "[2/2]" in out
    assert "train linear on text8" in out
    assert weights(tmp_path) == [file]
    assert len(file.read_bytes()) == len(trained)
    assert len(cells(tmp_path)["train"]) == 1
    assert len(cells(tmp_path)["span"]) == 2


UNFIT = {
    "recall": ("task=induction", "needs a long text, but task=induction has none"),
    "context": ("task=listops", "needs a long text, but task=listops has none"),
    "needles": ("task=text8", "task=text8 cannot spell needles"),
    "index_recall": ("task=text8", "no layer of this model has an index: choose model=indexed"),
}


@pytest.mark.parametrize("runner", UNFIT)
def test_what_a_runner_refuses_is_not_trained_for(tmp_path: Path, capsys, runner: str) -> None:
    task, reason = UNFIT[runner]
    few = ["task.source=sample"] if task in ("task=text8", "task=listops") else ["task.length=12"]
    words = ["runner=" + runner, task, *few, "model=linear", *TINY[4:], f"results={tmp_path}"]
    assert main(["run", *words, "runner.dry_run=true"]) == 0
    listed = capsys.readouterr().out
    assert reason in listed
    assert "train linear" not in listed
    main(["run", *words])
    capsys.readouterr()
    rows = read_rows(tmp_path)
    assert [*rows["runner"]] == [runner]
    assert [*rows["status"]] == ["unsupported"]
    assert reason in rows["reason"].iloc[0]


def test_every_shard_has_the_training_that_it_needs(tmp_path: Path, capsys) -> None:
    sweep = ("-m", *LONGER[:1], "runner.factors=[1],[2],[0.5]", "runner.dry_run=true")
    seen: dict[str, list[str]] = {"train": [], "extrapolate": []}
    for part in ("1/2", "2/2"):
        assert run(tmp_path, *sweep, f"runner.shard={part}") == 0
        listed = [line.split() for line in capsys.readouterr().out.splitlines()[:-1]]
        assert listed[0][3] == "train"
        for key, _, _, kind, *_ in listed:
            seen[kind].append(key)
    assert len(seen["train"]) == 2
    assert len(set(seen["train"])) == 1
    assert len(seen["extrapolate"]) == len(set(seen["extrapolate"])) == 3

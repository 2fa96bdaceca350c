"""A warm-up that nobody named ends with the steps, visibly; one named by hand is never changed."""

import random
from typing import Any

import pytest
from fuzz import cases

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError
from lra.runners.training.optim import IN_CYCLES, OPEN_ENDED, Schedule
from lra.runners.training.schedules import learning_rate
from lra.sweep.cells import plan

SWEEP = "hydra.sweeper.params={}"


def optim(*words: str) -> dict[str, Any]:
    (entry,) = entries(["task=listops", *words, SWEEP])
    return dict(entry.config["optim"])


def test_fewer_steps_than_the_warm_up_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert optim("optim.steps=20")["warmup_steps"] == 20
    said = capsys.readouterr().err
    assert said.startswith("lra: optim.warmup_steps is 20 instead of 50 as in a file")
    assert "optim.warmup_steps=N" in said
    assert len(said.splitlines()) == 1


def test_a_protocols_warm_up_is_cut_by_name_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert optim("+protocol=s4", "optim.steps=20")["warmup_steps"] == 20
    assert "instead of 12,000 as in +protocol=s4" in capsys.readouterr().err
    assert optim("+protocol=s4")["warmup_steps"] == 12_000
    assert "warmup_steps" not in capsys.readouterr().err


def test_a_schedule_whose_published_warm_up_is_longer_keeps_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (entry,) = entries(["+protocol=lra_paper", "task=retrieval", "task.source=sample"])
    own = entry.config["optim"]
    assert (own["steps"], own["warmup_steps"]) == (5000, 8000)
    assert "warmup_steps" not in capsys.readouterr().err


@pytest.mark.parametrize("schedule", Schedule)
def test_every_schedule_that_ends_warms_up_within_the_run(schedule: Schedule) -> None:
    words = ("optim.steps=20", f"optim.schedule={schedule}", "runner.evaluate_every_steps=5")
    cycles = ("optim.cycle_steps=7",) if schedule in IN_CYCLES else ()
    (entry,) = entries(["task=listops", "task.source=sample", *words, *cycles, SWEEP])
    assert entry.config["optim"]["warmup_steps"] == (50 if schedule in OPEN_ENDED else 20)
    assert typed(entry.config).optim.schedule is schedule


@pytest.mark.parametrize(
    "words",
    [
        ("optim.warmup_steps=50",),
        ("optim.warmup_steps=50", "+protocol=s4"),
        ("optim={warmup_steps: 50}",),
        ("++optim.warmup_steps=50",),
    ],
)
def test_one_named_by_hand_is_refused_where_it_is_too_long(words: tuple[str, ...]) -> None:
    (entry,) = entries(["task=listops", *words, "optim.steps=20"])
    assert entry.config["optim"]["warmup_steps"] == 50
    with pytest.raises(ConfigError, match=r"warmup_steps=50 must not exceed steps=20: lower"):
        typed(entry.config)


def test_the_training_before_a_transfer_too(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["+experiment=transfer", "model=linear", "runner.source=softmax"]
    (entry,) = entries([*words, "runner.pretraining.optim.steps=7"])
    assert entry.config["runner"]["pretraining"]["optim"]["warmup_steps"] == 7
    assert "runner.pretraining.optim.warmup_steps is 7 instead" in capsys.readouterr().err
    (entry,) = entries([*words, "~runner.pretraining.optim.warmup_steps", "optim.steps=30",
                        "runner.pretraining.optim.steps=9"])  # fmt: skip
    assert entry.config["optim"]["warmup_steps"] == 20
    assert entry.config["runner"]["pretraining"]["optim"]["warmup_steps"] == 9
    capsys.readouterr()
    (entry,) = entries([*words, "~runner.pretraining.optim.warmup_steps", "optim.steps=5",
                        "runner.pretraining.optim.steps=9"])  # fmt: skip
    assert entry.config["optim"]["warmup_steps"] == 5
    assert entry.config["runner"]["pretraining"]["optim"] == {"steps": 9}  # it warms up for 5 too


@pytest.mark.fuzz
def test_a_sweep_cuts_each_of_its_runs_alone() -> None:
    """Whatever is swept beside it, in the quick way of sweeps as in Hydra's own."""
    draw = random.Random(7)
    for _ in range(cases(4)):
        steps = draw.sample([3, 49, 50, 51, 400], 3)
        extra = draw.choice([[], ["model=linear,fnet"], ["task.data_seed=${seed}"], ["size=small"]])
        file = draw.choice([[], ["+protocol=s4"], ["+experiment=families_train", "runner=train"]])
        words = [f"optim.steps={','.join(map(str, steps))}", *extra, *file, "task=listops"]
        for entry in entries(["-m", *words, "model=linear"] if file else ["-m", *words]):
            own = entry.config["optim"]
            given = 12_000 if file == ["+protocol=s4"] else 50
            assert own["warmup_steps"] == min(given, own["steps"]), words
            run = typed(entry.config)
            assert plan(run)[0].config["optim"] == own
            from_0 = file == ["+protocol=s4"]  # as its source
            assert all(learning_rate(run.optim, n) > 0 for n in range(from_0, own["steps"]))

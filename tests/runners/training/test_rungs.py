"""A training that ends early and goes on elsewhere is the uninterrupted one, to the bit."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.models.backbone.config import BackboneConfig
from lra.runners.measures.train import Train
from lra.runners.records import Measurement, Outcomes
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.config import TrainConfig, check_together
from lra.runners.training.optim import OptimConfig
from tests.runners.tiny_task import OPTIM, model, training

STEPS = 16
WHOLE: dict[str, Any] = {"steps": STEPS, "warmup_steps": 3}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "averaged": ({"ema_decay": 0.6}, {}),
    "best, with momentum": (
        {"optimiser": "sgd", "momentum": 0.9, "schedule": "plateau"},
        {"evaluate_every_steps": 3, "keep": "best"},
    ),
    "stages": ({}, {"stages": [{"steps": 4}, {"steps": 6, "accumulate": 3}]}),
}
"""Options of the optimiser and of the training."""


def trained(
    folder: Path, kind: str, until: int | None = None, earlier: Path | None = None
) -> tuple[dict[tuple[Any, ...], float], list[Any]]:
    """Return the scores and the loss curve of a training, and its outcomes by split."""
    options, config = KINDS[kind]
    said = {**config, "until_step": until, "log_every_steps": 5}
    optim = replace(OPTIM, **WHOLE | options)
    items = [*training(model(), folder=folder, optim=optim, earlier=earlier, **said)]
    rows = {
        (item.metric, item.step, item.labels.get("split")): float(item.value or 0.0)
        for item in items
        if isinstance(item, Measurement) and item.metric in ("accuracy", "loss", "train_loss")
    }
    return rows, [item.nll.tolist() for item in items if isinstance(item, Outcomes)]


@pytest.mark.parametrize(
    ("kind", "lost"), [*((kind, False) for kind in KINDS), ("best, with momentum", True)]
)
def test_rungs_are_one_training(kind: str, lost: bool, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", kind)
    rungs = [STEPS // 4, STEPS // 2, None]
    earlier: Path | None = None
    for number, until in enumerate(rungs):
        folder = tmp_path / f"rung-{number}"
        if lost and earlier is not None:
            shutil.rmtree(earlier)
        rows = trained(folder, kind, until, earlier)
        earlier = folder
        if until is not None:
            assert Checkpoints(folder).step() == until
            assert not Checkpoints(folder).finished()
    assert rows == whole
    theirs, ours = (Checkpoints(tmp_path / name).weights() for name in ("whole", "rung-2"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)


def test_a_rung_goes_on_where_the_earlier_one_ended(tmp_path: Path) -> None:
    trained(tmp_path / "a", "plain", 8)
    state = next(Checkpoints(tmp_path / "a").states())[1]
    changed = {**state, "examples": 77}
    Checkpoints(tmp_path / "a").save(changed)
    optim = replace(OPTIM, **WHOLE)
    items = training(model(), folder=tmp_path / "b", optim=optim, earlier=tmp_path / "a")
    seen = [i.value for i in items if isinstance(i, Measurement) and i.metric == "examples_seen"]
    assert seen == [77.0 + 8 * 8]


def test_the_state_of_an_earlier_rung_lies_beside_its_cell() -> None:
    checkpoints = Path("results/cells/3f/3fa9/checkpoint-abc")
    earlier = Train(continues="77aa")._find_earlier_state(checkpoints)
    assert earlier == Path("results/cells/77/77aa/checkpoint-abc")
    assert Train()._find_earlier_state(checkpoints) is None


@pytest.mark.parametrize("until", [STEPS, STEPS + 1])
def test_an_end_behind_the_schedule_is_refused(until: int) -> None:
    with pytest.raises(ValueError, match=r"runner\.until_step stops a training before"):
        check_together(
            OptimConfig(steps=STEPS, warmup_steps=1),
            TrainConfig(until_step=until),
            BackboneConfig(depth=1, width=8, heads=1, feed_forward_width=8),
        )
    with pytest.raises(ValueError, match="until_step"):
        TrainConfig(until_step=0)


def test_labels_of_a_choice() -> None:
    assert Train(tuned="mine/1/5").marks("") == {"tuned": "mine", "study": "1", "trial": "5"}
    assert Train().marks("") == {}

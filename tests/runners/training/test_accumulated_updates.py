"""What counts updates counts those of the weights, where several batches make one."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lra.runners.training.loop import Trainer
from lra.runners.training.optim import OptimConfig
from lra.runners.training.stages import TrainingStages
from lra.runners.training.updates import WeightUpdates
from lra.tasks.task import Batch
from tests.runners.tiny_task import Tiny, model, trainer_of

STAGES = [{"steps": 1}, {"steps": 6, "accumulate": 3}]
"""Then single batches: updates behind the steps 1, 4, 7, 8 and 9."""
STEPS, MOVING = 9, [1, 4, 7, 8, 9]


def optim(**options: Any) -> OptimConfig:
    usual = {"steps": STEPS, "batch_size": 8, "peak_learning_rate": 1e-2, "schedule": "constant"}
    return OptimConfig(**(usual | options))


def batches() -> list[Batch]:
    return [*Tiny(8 * STEPS).batches("train", batch_size=8, seed=0)]


def advance(made: Trainer, batch: Batch) -> None:
    made.stage = made.stages.stage_at(made.step + 1)
    made.advance(batch)


def test_updates_are_told_from_steps() -> None:
    stages = TrainingStages(STAGES, optim())
    assert [stages.updates(step) for step in range(STEPS + 1)] == [0, 1, 1, 1, 2, 2, 2, 3, 4, 5]


@pytest.mark.parametrize("stages", [STAGES, [{"steps": 9, "accumulate": 3}]])
@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_takes_in_what_updates_make(warmup: bool, stages: list[Any]) -> None:
    """The first one whole, however many batches it is of, and none of the initial weights."""
    net = model()
    made = trainer_of(net, optim=optim(ema_decay=0.6, ema_warmup=warmup), stages=stages)

    def mean(average: torch.Tensor, weight: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        decay = min(0.6, (1 + int(taken)) / (10 + int(taken))) if warmup else 0.6
        return decay * average + (1 - decay) * weight

    theirs = AveragedModel(model(), avg_fn=mean)
    for batch in batches():
        before = made.updates.optimiser.param_groups[0]["params"][0].clone()
        advance(made, batch)
        if not torch.equal(before, made.updates.optimiser.param_groups[0]["params"][0]):
            theirs.update_parameters(net)
    assert int(theirs.n_averaged) == made.stages.updates(STEPS)
    assert made.updates.average is not None
    for name, value in theirs.module.named_parameters():
        torch.testing.assert_close(made.updates.average.averages[name], value.detach())


def test_modules_act_after_updates_and_count_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that features which are drawn anew stay while gradients of one update are gathered."""
    net = model(redraw_every=1)
    made, seen, drawn = trainer_of(net, optim=optim(), stages=STAGES), [], []
    (hook,) = made.hooks
    act = hook.after_step
    monkeypatch.setattr(hook, "after_step", lambda n, g: (seen.append((made.step, n)), act(n, g)))
    for batch in batches():
        advance(made, batch)
        drawn.append(torch.cat([buffer.flatten() for buffer in net.buffers()]).tolist())
    assert seen == [(step, number + 1) for number, step in enumerate(MOVING)]
    changed = [n + 1 for n in range(1, STEPS) if drawn[n] != drawn[n - 1]]
    assert changed == MOVING[1:]


def test_what_float16_cannot_hold_is_no_update() -> None:
    layer = nn.Linear(2, 1)
    updates = WeightUpdates(layer, OptimConfig(ema_decay=0.9), half=True)
    updates.begin(0)
    before = layer.weight.detach().clone()
    for factor, moved in ((float("inf"), False), (1.0, True)):
        updates.backward((layer(torch.ones(2)) * factor).sum())
        assert updates.apply() is moved
        assert torch.equal(layer.weight, before) is not moved

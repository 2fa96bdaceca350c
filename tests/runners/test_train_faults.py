"""The loop when something goes wrong, and its clock, which is told the time by the test."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_task import Tiny, model
from torch import Tensor, nn

from models.backbone import Backbone
from runners import train as loop
from runners.checkpoint import Checkpoints
from runners.hardware import HardwareProfile
from runners.optim import OptimConfig
from runners.records import Diverged, Interrupted, Measurement
from runners.train import Keep, TrainConfig, Trainer, train
from tasks.task import Batch, Task

OPTIM = OptimConfig(steps=12, batch_size=8, peak_learning_rate=1e-2)


def run(
    net: Backbone, config: TrainConfig, folder: Path | None = None, task: Task | None = None
) -> Iterator[Measurement]:
    stream = train(
        net,
        task or Tiny(),
        optim=OPTIM,
        config=config,
        hardware=HardwareProfile(name="cpu"),
        seed=3,
        checkpoints=folder,
    )
    return (item for item in stream if isinstance(item, Measurement))


def curve(rows: list[Measurement]) -> list[Any]:
    return [(r.metric, r.step, r.value) for r in rows if r.step is not None]


def same(a: Backbone, b: Backbone) -> bool:
    pairs = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


def test_the_clock_counts_steps_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    now = [0.0]
    advance, evaluate, save = Trainer.advance, loop.evaluate, Checkpoints.save

    def costs(seconds: float, function: Any) -> Any:
        def paid(*arguments: Any, **options: Any) -> Any:
            now[0] += seconds
            return function(*arguments, **options)

        return paid

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Trainer, "advance", costs(1.0, advance))
    monkeypatch.setattr(loop, "evaluate", costs(100.0, evaluate))
    monkeypatch.setattr(Checkpoints, "save", costs(1000.0, save))
    # validation and checkpoints fall between the log steps, and the reader takes its time
    config = TrainConfig(log_every_steps=5, evaluate_every_steps=4, checkpoint_every_s=2.5)
    rows = []
    for row in run(model(), config, tmp_path):
        now[0] += 10_000.0
        rows.append(row)
    found = {row.metric: row for row in rows if "split" not in row.labels and row.step is None}
    assert found["train_time"].value == 12.0
    assert found["train_step_time"].samples == (1.0, 1.0, 1.0)


def test_time_before_an_interruption_is_not_lost(tmp_path: Path, monkeypatch) -> None:
    now = [0.0]
    advance = Trainer.advance

    def slow(self: Trainer, batch: Batch) -> Tensor:
        now[0] += 1.0
        if self.step == 6:
            os.kill(os.getpid(), signal.SIGTERM)
        return advance(self, batch)

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(Trainer, "advance", slow)
    config = TrainConfig(log_every_steps=5)
    with pytest.raises(Interrupted, match="after step 7"):
        list(run(model(), config, tmp_path))
    found = {row.metric: row for row in run(model(), config, tmp_path) if row.step is None}
    assert found["train_time"].value == 12.0
    assert found["train_step_time"].samples == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("at", [1, 3])
def test_a_stop_during_validation_repeats_that_validation(at: int, tmp_path: Path) -> None:
    class Stopping(Tiny):
        times = 0

        def batches(self, split: str, **options: Any) -> Iterator[Batch]:
            if split == "validation":
                self.times += 1
                if self.times == at:
                    os.kill(os.getpid(), signal.SIGTERM)
            yield from super().batches(split, **options)

    config = TrainConfig(log_every_steps=3, evaluate_every_steps=4, keep=Keep.best)
    whole = model(dropout=0.2)
    expected = list(run(whole, config))
    with pytest.raises(Interrupted, match=f"while evaluating after step {4 * at}"):
        list(run(model(dropout=0.2), config, tmp_path, Stopping()))
    resumed = model(dropout=0.2)
    found = list(run(resumed, config, tmp_path))
    assert curve(found) == curve(expected)
    assert [row.step for row in found if row.metric == "accuracy"] == [4, 8, 12, None, None]
    assert same(whole, resumed)


def test_a_checkpoint_of_another_model_is_said_and_left(tmp_path: Path, caplog) -> None:
    config = TrainConfig(log_every_steps=1, checkpoint_every_s=1e-9)
    half = run(model(), config, tmp_path)
    for row in half:
        if row.step == 6:
            break
    other = model()
    other.add_module("added", nn.Linear(2, 2))
    found = list(run(other, config, tmp_path))
    assert "training begins anew" in caplog.text
    fresh = model()
    assert curve(found) == curve(list(run(fresh, config)))


def test_weights_that_broke_in_the_last_step_are_no_result(monkeypatch) -> None:
    advance = Trainer.advance

    def break_weights(self: Trainer, batch: Batch) -> Tensor:
        loss = advance(self, batch)
        if self.step == OPTIM.steps:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.fill_(float("nan"))
        return loss

    monkeypatch.setattr(Trainer, "advance", break_weights)
    rows: list[Measurement] = []
    with pytest.raises(Diverged, match=r"validation loss was nan after step 12 of 12; lower optim"):
        rows.extend(run(model(), TrainConfig(log_every_steps=3)))
    assert [row.step for row in rows if row.metric == "train_loss"] == [3, 6, 9, 12]
    assert {"train_time", "examples_seen", "parameters"} <= {row.metric for row in rows}
    assert not any(row.metric == "accuracy" for row in rows)

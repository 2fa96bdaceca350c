"""The loop: exact resume, exact accumulation, honest ends."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lra.models.backbone.model import Backbone
from lra.runners.measurement.hardware import HardwareProfile, Precision
from lra.runners.measurement.witnesses import Counters, ProcessTimes
from lra.runners.measures.train import train
from lra.runners.records import Diverged, Measurement, Outcomes
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.config import Keep, TrainConfig
from lra.runners.training.evaluate import goodness
from lra.runners.training.loop import Item, Trainer
from lra.runners.training.optim import OptimConfig
from tests.runners.tiny_task import TIMES, Tiny, model, same

CPU = HardwareProfile(name="cpu")


def run(
    net: Backbone,
    *,
    folder: Path | None = None,
    steps: int = 12,
    hardware: HardwareProfile = CPU,
    config: TrainConfig | None = None,
    task: Tiny | None = None,
    **options: Any,
) -> Iterator[Item]:
    optim = OptimConfig(**{"steps": steps, "batch_size": 8, "peak_learning_rate": 1e-2} | options)
    config = config or TrainConfig(log_every_steps=3)
    return train(
        net,
        task or Tiny(),
        optim=optim,
        config=config,
        hardware=hardware,
        seed=3,
        checkpoints=folder,
    )


def rows(items: list[Item]) -> list[Measurement]:
    return [i for i in items if isinstance(i, Measurement) and i.metric not in TIMES]


def test_it_learns() -> None:
    found = rows(list(run(model(), steps=200, task=Tiny(train=400))))
    final = {i.metric: i.value for i in found if i.labels.get("split") == "test"}
    assert final["accuracy"] == 1.0


def test_rows_tell_how_long_a_training_waited_for_a_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = ProcessTimes(100.0, 0.0, 0.0, 2.0, 0.0, 0, None, None, 0)
    ended = began._replace(at=108.0, waited=4.0)
    readings = iter((began, ended))
    monkeypatch.setattr(Counters, "process_times", lambda counters: next(readings))
    (row,) = (i for i in run(model()) if isinstance(i, Measurement) and i.metric == "waiting_share")
    assert (row.value, row.step) == (0.25, None)


def test_rows_and_outcomes_are_complete() -> None:
    items = list(run(model()))
    found = rows(items)
    assert [i.step for i in found if i.metric == "train_loss"] == [3, 6, 9, 12]
    assert {(i.metric, i.labels["split"]) for i in found if "split" in i.labels} == {
        (metric, split) for metric in ("accuracy", "loss") for split in ("validation", "test")
    }
    outcomes = {i.split: i for i in items if isinstance(i, Outcomes)}
    assert list(outcomes["test"].index) == list(range(10))
    accuracy = next(
        i.value for i in found if i.metric == "accuracy" and i.labels["split"] == "test"
    )
    assert outcomes["test"].hit.mean() == pytest.approx(accuracy)
    names = {i.metric for i in items if isinstance(i, Measurement)}
    assert names >= {*TIMES, "parameters", "examples_seen"}


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_accumulated_gradient_is_that_of_the_batch(micro: int, weighted: bool) -> None:
    found = []
    for size in (8, micro):
        net = model().double()
        trainer = Trainer(
            net,
            Tiny(),
            optim=OptimConfig(batch_size=8, micro_batch_size=size, clip=None),
            config=TrainConfig(),
            hardware=CPU,
            seed=0,
            checkpoints=Checkpoints(None),
        )
        grads: list[torch.Tensor] = []
        trainer.updates.optimiser.step = lambda net=net, grads=grads, *_, **__: grads.extend(  # type: ignore[method-assign]
            p.grad.clone() for p in net.parameters()
        )
        batch = next(Tiny().batches("train", batch_size=8, seed=0))
        if weighted:
            batch = batch._replace(weight=torch.arange(8.0, dtype=torch.float64))
        trainer.advance(batch)
        found.append(grads)
    for whole, parts in zip(*found, strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-11, atol=1e-13)


def test_another_interval_of_logs_goes_on_from_a_checkpoint(tmp_path: Path, caplog) -> None:
    whole = model()
    list(run(whole, config=TrainConfig(log_every_steps=3)))
    half = run(
        model(), folder=tmp_path, config=TrainConfig(log_every_steps=3, checkpoint_every_s=1e-9)
    )
    for item in half:
        if isinstance(item, Measurement) and item.step == 9:
            break
    half.close()  # type: ignore[attr-defined]
    resumed = model(seed=99)
    found = list(run(resumed, folder=tmp_path, config=TrainConfig(log_every_steps=4)))
    assert not caplog.records
    assert same(whole, resumed)
    steps = [item.step for item in found if isinstance(item, Measurement) and item.step]
    assert steps == sorted(steps)


def test_a_loss_that_is_no_number_ends_the_run_with_step_and_rate() -> None:
    net = model()
    with torch.no_grad():
        net.embedding.weight.fill_(float("nan"))
    with pytest.raises(Diverged, match=r"nan at step 1 of 12 with learning rate .*lower optim"):
        list(run(net))


def test_keep_best_restores_the_best_validation_weights() -> None:
    config = TrainConfig(evaluate_every_steps=1, keep=Keep.best)
    found = rows(list(run(model(), steps=30, config=config, peak_learning_rate=0.05)))
    during = [i.value for i in found if i.metric == "accuracy" and i.step is not None]
    final = [i for i in found if i.metric == "accuracy" and i.step is None]
    kept = next(i for i in final if i.labels["split"] == "validation")
    assert kept.value == max(during)
    assert kept.labels["weights"].startswith("best validation, step ")


def test_the_best_weights_are_those_of_the_tasks_own_metric() -> None:
    better, worse = {"accuracy": 0.2, "loss": 1.0}, {"accuracy": 0.4, "loss": 2.0}
    assert goodness(better, "loss") > goodness(worse, "loss")
    assert goodness(better, "accuracy") < goodness(worse, "accuracy")
    assert goodness(better, "computed_elsewhere") > goodness(worse, "computed_elsewhere")


@pytest.mark.parametrize("precision", [Precision.bfloat16, Precision.float16])
def test_mixed_precision_trains_and_keeps_float32_weights(precision: Precision) -> None:
    net = model()
    items = list(run(net, steps=4, hardware=HardwareProfile(name="cpu", precision=precision)))
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert any(isinstance(i, Outcomes) for i in items)


def test_too_few_examples_for_a_batch() -> None:
    with pytest.raises(ValueError, match="fewer examples than one batch of 64"):
        list(run(model(), batch_size=64))

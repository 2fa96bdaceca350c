"""The loop: exact resume, exact accumulation, honest ends."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lra.runners.measurement.hardware import HardwareProfile, Precision
from lra.runners.measurement.witnesses import Counters, ProcessTimes
from lra.runners.records import Diverged, Measurement, Outcomes
from lra.runners.training.config import Keep
from lra.runners.training.evaluate import goodness
from lra.runners.training.loop import Item
from tests.runners.tiny_task import OPTIM, TIMES, Tiny, model, same, trainer_of, training


def rows(items: list[Item]) -> list[Measurement]:
    return [i for i in items if isinstance(i, Measurement) and i.metric not in TIMES]


def test_it_learns() -> None:
    found = rows(list(training(model(), Tiny(train=400), optim=replace(OPTIM, steps=200))))
    final = {i.metric: i.value for i in found if i.labels.get("split") == "test"}
    assert final["accuracy"] == 1.0


def test_rows_tell_how_long_a_training_waited_for_a_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = ProcessTimes(100.0, 0.0, 0.0, 2.0, 0.0, 0, None, None, 0)
    ended = began._replace(at=108.0, waited=4.0)
    readings = iter((began, ended))
    monkeypatch.setattr(Counters, "process_times", lambda counters: next(readings))
    (row,) = (i for i in training(model()) if getattr(i, "metric", "") == "waiting_share")
    assert (row.value, row.step) == (0.25, None)


def test_rows_and_outcomes_are_complete() -> None:
    items = list(training(model()))
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
        trainer = trainer_of(net, optim=replace(OPTIM, micro_batch_size=size, clip=None))
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
    list(training(whole))
    half = training(model(), folder=tmp_path, checkpoint_every_s=1e-9)
    for item in half:
        if isinstance(item, Measurement) and item.step == 9:
            break
    half.close()  # type: ignore[attr-defined]
    resumed = model(seed=99)
    found = list(training(resumed, folder=tmp_path, log_every_steps=4))
    assert not caplog.records
    assert same(whole, resumed)
    steps = [item.step for item in found if isinstance(item, Measurement) and item.step]
    assert steps == sorted(steps)


def test_a_loss_that_is_no_number_ends_the_run_with_step_and_rate() -> None:
    net = model()
    with torch.no_grad():
        net.embedding.weight.fill_(float("nan"))
    with pytest.raises(Diverged, match=r"nan at step 1 of 12 with learning rate .*lower optim"):
        list(training(net))


def test_keep_best_restores_the_best_validation_weights() -> None:
    optim = replace(OPTIM, steps=30, peak_learning_rate=0.05)
    found = rows(list(training(model(), optim=optim, evaluate_every_steps=1, keep=Keep.best)))
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
    items = list(training(net, hardware=HardwareProfile(name="cpu", precision=precision)))
    assert {p.dtype for p in net.parameters()} == {torch.float32}
    assert any(isinstance(i, Outcomes) for i in items)


def test_the_same_seed_gives_the_same_run_whatever_went_before() -> None:
    first = model(dropout=0.3)
    list(training(first))
    torch.rand(17)
    second = model(dropout=0.3)
    list(training(second))
    assert same(first, second)


def test_too_few_examples_for_a_batch() -> None:
    with pytest.raises(ValueError, match="fewer examples than one batch of 64"):
        list(training(model(), optim=replace(OPTIM, batch_size=64)))

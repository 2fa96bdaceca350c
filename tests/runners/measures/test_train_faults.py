"""The loop when something goes wrong, and its clock, which is told the time by the test."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fuzz import cases
from torch import Tensor, nn

from lra.models.backbone.model import Backbone
from lra.runners.records import Diverged, Interrupted, Measurement
from lra.runners.training import loop
from lra.runners.training.checkpoint import PREVIOUS, RESUME, WEIGHTS, Checkpoints
from lra.runners.training.config import Keep
from lra.runners.training.loop import Trainer
from lra.tasks.task import Batch
from tests.runners.tiny_task import OPTIM, model, same, training

OFTEN = {"log_every_steps": 3, "checkpoint_every_s": 1e-9}
EACH = {**OFTEN, "log_every_steps": 1}


def run(net: Backbone, config: dict[str, Any], folder: Path | None = None) -> Iterator[Measurement]:
    return (i for i in training(net, folder=folder, **config) if isinstance(i, Measurement))


def curve(rows: list[Measurement]) -> list[Any]:
    return [(r.metric, r.step, r.value) for r in rows if r.step is not None]


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
    config = {"log_every_steps": 5, "evaluate_every_steps": 4, "checkpoint_every_s": 2.5}
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
    config = {"log_every_steps": 5}
    with pytest.raises(Interrupted, match="after step 7"):
        list(run(model(), config, tmp_path))
    found = {row.metric: row for row in run(model(), config, tmp_path) if row.step is None}
    assert found["train_time"].value == 12.0
    assert found["train_step_time"].samples == (1.0, 1.0, 1.0)


def test_a_checkpoint_of_another_model_is_said_and_left(tmp_path: Path, caplog) -> None:
    half_trained(tmp_path, EACH)
    other = model()
    other.add_module("added", nn.Linear(2, 2))
    found = list(run(other, EACH, tmp_path))
    assert "training starts from the beginning" in caplog.text
    fresh = model()
    assert curve(found) == curve(list(run(fresh, EACH)))


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
        rows.extend(run(model(), {}))
    assert [row.step for row in rows if row.metric == "train_loss"] == [3, 6, 9, 12]
    assert {"train_time", "examples_seen", "parameters"} <= {row.metric for row in rows}
    assert not any(row.metric == "accuracy" for row in rows)


def half_trained(folder: Path, config: dict[str, Any]) -> None:
    half = run(model(dropout=0.2), config, folder)
    for row in half:
        if row.step == 6:
            break


FOREIGN: list[Any] = [["list"], None, {}, {"step": 3}, torch.ones(3), {"identity": "other"}]


def test_a_checkpoint_of_foreign_content_means_training_anew(tmp_path: Path, caplog) -> None:
    fresh = model(dropout=0.2)
    expected = curve(list(run(fresh, OFTEN)))
    for number, content in enumerate(FOREIGN):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in (RESUME, PREVIOUS):
            torch.save(content, folder / name)
        caplog.clear()
        trained = model(dropout=0.2)
        assert curve(list(run(trained, OFTEN, folder))) == expected, content
        assert same(trained, fresh)
        assert str(folder / RESUME) in caplog.text
        assert "training starts from the beginning" in caplog.text


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every key of every mapping and list inside a state."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in list(keys):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from places(node[key])


WRONG: list[Any] = [
    None, "text", -7, 10**400, float("nan"), float("inf"), [], {}, {"a": 1}, [None], (1, 2), True,
    torch.ones(3, 5), torch.zeros(()), torch.ones(2, dtype=torch.uint8), [{"metric": "loss"}],
]  # fmt: skip


@pytest.mark.fuzz
def test_one_wrong_value_in_a_checkpoint(tmp_path: Path, caplog) -> None:
    """Training goes on, or begins anew with nothing taken over: never half of each."""
    config = {**OFTEN, "evaluate_every_steps": 4, "keep": Keep.best}
    half_trained(tmp_path / "half", config)
    fresh = model(dropout=0.2)
    anew = curve(list(run(fresh, config)))
    generator = random.Random(5)
    begun_anew = 0
    for number in range(cases(5)):
        state = torch.load(tmp_path / "half" / RESUME, weights_only=True)
        node, key = generator.choice(list(places(state)))
        old = node[key]
        if generator.random() < 0.2 and isinstance(node, dict):
            del node[key]
            new: Any = "nothing"
        else:
            new = node[key] = generator.choice(WRONG)
        folder = tmp_path / str(number)
        folder.mkdir()
        torch.save(state, folder / RESUME)
        caplog.clear()
        trained = model(dropout=0.2)
        rows = curve(list(run(trained, config, folder)))
        told = f"{key}: {old!r:.80} became {new!r:.80}"
        if "training starts from the beginning" in caplog.text:
            begun_anew += 1
            assert rows == anew, told
            assert same(trained, fresh), told
        else:
            # AdamW has no moments of a parameter that no loss has reached
            lost = isinstance(old, dict) and "exp_avg" in old and new == "nothing"
            assert lost or type(new) is type(old), told
    assert begun_anew > cases(5) / 2


def test_the_checkpoint_before_serves_where_the_newest_is_foreign(tmp_path: Path, caplog) -> None:
    half_trained(tmp_path, EACH)
    torch.save({"identity": 3}, tmp_path / RESUME)
    caplog.set_level("INFO")
    trained, whole = model(dropout=0.2), model(dropout=0.2)
    assert curve(list(run(trained, EACH, tmp_path))) == curve(list(run(whole, EACH)))
    assert "resumed at step" in caplog.text
    assert same(trained, whole)


@pytest.mark.parametrize("content", [[], {"a": 1}, 7])
def test_final_weights_of_foreign_content_are_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=r"weights\.pt is damaged .*; delete it and train again"):
        Checkpoints(tmp_path).weights()

"""A training stops at a target on validation, and says so if it never reaches it."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lra.models.mixer import Unsupported
from lra.runners.measures.train import Train
from lra.runners.records import Interrupted, Measurement, Status
from lra.runners.training.loop import Trainer
from lra.terminal.progress import failure
from tests.runners.tiny_task import OPTIM, TIMES, Tiny, model, training

LONG = replace(OPTIM, steps=200)
EASY = {"accuracy": 0.7}


def rows(
    stop_at: dict[str, float], folder: Path | None = None, steps: int = 200, **config: Any
) -> list[Measurement]:
    items = training(
        model(), Tiny(train=400), folder, optim=replace(LONG, steps=steps),
        evaluate_every_steps=10, stop_at=stop_at, **config,
    )  # fmt: skip
    return [item for item in items if isinstance(item, Measurement)]


def target(found: list[Measurement]) -> Measurement:
    (row,) = (row for row in found if row.metric == "steps_to_target")
    return row


def curve(found: list[Measurement], metric: str) -> dict[int, float]:
    return {row.step: row.value for row in found if row.metric == metric and row.step is not None}


def test_it_stops_at_the_first_validation_that_reaches_the_target(tmp_path: Path) -> None:
    found = rows(EASY, tmp_path)
    scores, row = curve(found, "accuracy"), target(found)
    *before, last = sorted(scores)
    assert before
    assert all(scores[step] < 0.7 for step in before)
    assert scores[last] >= 0.7
    assert row.value == last < 200
    assert (row.status, row.step) == (Status.ok, None)
    assert row.labels["threshold"] == "accuracy at least 0.7"
    final = {r.metric: r for r in found if r.labels.get("split") == "test"}
    assert final["accuracy"].value is not None
    assert (tmp_path / "weights.pt").exists()  # a finished training
    # The steps before are those of a training without a target.
    free = curve([i for i in training(model(), Tiny(train=400), optim=LONG, evaluate_every_steps=10)
                  if isinstance(i, Measurement)], "accuracy")  # fmt: skip
    assert {step: free[step] for step in scores} == scores


def test_all_thresholds_count_and_losses_are_small_enough() -> None:
    found = rows({"accuracy": 0.5, "loss": 0.6})
    row, scores, losses = target(found), curve(found, "accuracy"), curve(found, "loss")
    first = [s for s in sorted(scores) if scores[s] >= 0.5 and losses[s] <= 0.6]
    assert row.value == first[0] == max(scores)
    assert row.labels["threshold"] == "accuracy at least 0.5 and loss at most 0.6"
    assert any(scores[s] >= 0.5 and losses[s] > 0.6 for s in scores)  # one alone is not enough


def test_a_training_that_never_reaches_it_says_so() -> None:
    found = rows({"loss": 1e-9}, steps=20)
    row = target(found)
    assert (row.value, row.status) == (None, Status.skipped)
    assert "did not reach loss at most 1e-09 within 20 steps (best: loss " in row.reason
    assert failure(found) is None  # the run itself has succeeded
    assert max(curve(found, "accuracy")) == 20


@pytest.mark.parametrize("place", ["advance", "conclude"])
def test_a_resumed_training_ends_at_the_same_step(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped before the target, or in the final evaluation after it."""
    whole = rows(EASY)
    assert (target(whole).value or 0) > 5
    method = getattr(Trainer, place)

    def stopped(self: Trainer, *arguments: Any) -> Any:
        if place == "conclude" or self.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return method(self, *arguments)

    monkeypatch.setattr(Trainer, place, stopped)
    with pytest.raises(Interrupted):
        rows(EASY, tmp_path)
    monkeypatch.setattr(Trainer, place, method)
    again = rows(EASY, tmp_path)
    told = [[(r.metric, r.value, r.step, r.labels) for r in each if r.metric not in TIMES]
            for each in (whole, again)]  # fmt: skip
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("stop_at", "every", "words"),
    [
        ({"acuracy": 0.9}, 5, "got the metric 'acuracy'; wanted a score"),
        ({"parameters": 5}, 5, "got the metric 'parameters'"),
        ({"accuracy": 99.0}, 5, "got accuracy=99; accuracy is from 0 to 1"),
        ({"accuracy": float("nan")}, 5, "got accuracy=nan"),
        ({}, 5, "wanted a metric and its threshold"),
        ({"accuracy": 0.9}, 0, "evaluate_every_steps is 0; type runner.evaluate_every_steps=N"),
    ],
)
def test_targets_that_make_no_sense(stop_at: dict[str, float], every: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Train(stop_at=stop_at, evaluate_every_steps=every)


def test_a_metric_that_the_task_lacks_is_refused_before_the_first_step() -> None:
    config = Train(stop_at={"exact_match": 0.9}, evaluate_every_steps=5)
    words = "has the metric exact_match, but task=tiny has only accuracy, loss on validation"
    with pytest.raises(Unsupported, match=words):
        config.check_scores(Tiny(), prepared=False)
    task = Tiny()
    task.spec = replace(task.spec, scores=frozenset({"exact_match"}))
    config.check_scores(task, prepared=True)

    class Derived(Tiny):
        def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
            return {"perplexity": loss}

    Train(stop_at={"perplexity": 3.0}, evaluate_every_steps=5).check_scores(
        Derived(), prepared=True
    )
    config.check_scores(Derived(), prepared=False)  # the names need data
    with pytest.raises(Unsupported, match="has only accuracy, loss, perplexity"):
        config.check_scores(Derived(), prepared=True)

"""What a running cell says of itself: often enough to see, too seldom to matter."""

import logging
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lra.runners.isolation import progress
from lra.runners.isolation.progress import Event, Progress, listen, phase, phase_prefix, so_far
from lra.runners.measurement.measure import in_turns, warm_up
from lra.runners.measurement.watch import Watch
from lra.runners.records import Interrupted, Measurement
from lra.runners.training.loop import Trainer
from lra.runners.training.optim import OptimConfig
from lra.runners.training.schedules import learning_rate
from lra.runners.training.updates import WeightUpdates
from tests.runners.tiny_task import OPTIM, model, trainer_of, training

CPU = torch.device("cpu")


class Clock:
    """Time that passes only when somebody says so, or by a tick for each look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick, self.looks = 1000.0, tick, 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += self.tick
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=made))
    return made


@pytest.fixture
def said() -> Iterator[list[Progress | Event]]:
    found: list[Progress | Event] = []
    with listen(found.append, log=None):
        yield found


def test_without_a_listener_nothing_happens() -> None:
    phase("anything")
    so_far("anything", 1, 2, "thing")
    assert not progress.ready()


def test_messages_of_a_phase_keep_their_distance(clock: Clock, said: list[Any]) -> None:
    for number in range(1000):
        so_far("evaluating test", number, 1000, "example")
        clock.now += 0.01
    assert 90 <= len(said) <= 101  # of ten seconds
    assert said[0].done == 0
    so_far("timing", 0, 3, "sample", every_s=1.0)  # a phase that begins is said at once
    assert said[-1].phase == "timing"
    before = len(said)
    for number in range(1, 100):
        clock.now += 0.05
        so_far("timing", number, 100, "sample", every_s=1.0)
    assert 4 <= len(said) - before <= 5


def test_time_left_of_a_phase_counts_from_its_begin(clock: Clock, said: list[Any]) -> None:
    clock.now += 500
    so_far("evaluating", 10, 40, "example")  # after its first batch
    assert said[-1].left_s is None
    clock.now += 10
    so_far("evaluating", 20, 40, "example")
    assert said[-1].left_s == pytest.approx(20)
    clock.now += 1000
    so_far("evaluating", 10, 40, "example")  # another evaluation of the same name
    assert said[-1].left_s is None
    clock.now += 1
    so_far("evaluating", 20, 40, "example")
    assert said[-1].left_s == pytest.approx(2)
    clock.now += 1
    so_far("evaluating", 30, 0, "example")
    assert (said[-1].left_s, said[-1].total) == (None, 0)


def test_phases_name_what_they_belong_to(said: list[Any]) -> None:
    with phase_prefix("reference sdpa"):
        phase("building")
        with pytest.raises(KeyError), phase_prefix("deeper"):
            raise KeyError
        so_far("timing", 1, 2, "sample")
    phase("building")
    assert [m.phase for m in said] == [
        "reference sdpa: building", "reference sdpa: timing", "building"
    ]  # fmt: skip


def test_records_of_our_loggers_are_events_and_lines_of_the_log(tmp_path: Path) -> None:
    said: list[Any] = []
    before = logging.getLogger("lra").level
    with (tmp_path / "log.txt").open("w") as log, listen(said.append, log=log):
        logging.getLogger("lra.runners.training.resume").info("resumed at step %d", 53)
        logging.getLogger("lra.runners.measures.train").debug("checkpoint")
        logging.getLogger("strangers").warning("hush")
    logging.getLogger("lra.runners.training.resume").info("later")
    assert said == [
        Event(level=logging.INFO, text="resumed at step 53"),
        Event(level=logging.DEBUG, text="checkpoint"),
    ]
    text = (tmp_path / "log.txt").read_text()
    assert text.endswith("resumed at step 53\n")
    assert "checkpoint" not in text
    assert logging.getLogger("lra").level == before


def test_samples_are_counted_while_time_is_taken(clock: Clock, said: list[Any]) -> None:
    def call() -> None:
        clock.now += 2.0

    warm_up(call, CPU, least=2, most=2)
    in_turns({"a": call, "b": call}, Watch(CPU), 3, repeat_s=0.0)
    assert [(m.phase, m.done, m.total) for m in said] == [
        ("warming up", 0, 0), ("warming up", 1, 0),
        *(("timing", done, 3) for done in (0, 0, 1, 1, 2, 2)),  # before each of two calls
    ]  # fmt: skip
    assert said[-2].left_s == pytest.approx(4.0)


# -- training -------------------------------------------------------------------------------------


def steps(said: list[Any]) -> list[Progress]:
    return [m for m in said if isinstance(m, Progress) and m.unit == "step"]


def test_steps_say_loss_rate_speed_and_time_left(clock: Clock, said: list[Any]) -> None:
    clock.tick = 1.0  # every look is a second later: a message for each step
    items = [*training(model(), log_every_steps=1)]
    losses = {m.step: m.value for m in items if getattr(m, "metric", "") == "train_loss"}
    found = steps(said)
    assert [m.done for m in found] == [*range(1, 13)]
    for message in found:
        assert message.total == 12
        assert message.loss == pytest.approx(losses[message.done])
        assert message.learning_rate == learning_rate(OPTIM, message.done - 1)
        assert message.speed is not None
        assert message.speed > 0
        assert message.speed_unit == "examples"
    assert found[-1].left_s == 0
    phases = {m.phase for m in said if isinstance(m, Progress)}
    assert phases >= {"first step", "evaluating validation", "evaluating test"}


@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_say_what_a_dashboard_draws_and_move_no_number(
    clock: Clock, said: list[Any], clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    optim = OptimConfig(steps=6, batch_size=8, peak_learning_rate=1e-2, clip=clip)
    norms: list[float] = []
    real = WeightUpdates.apply

    def apply(self: WeightUpdates) -> None:
        squares = [
            (p.grad.double() ** 2).sum() for p in self.model.parameters() if p.grad is not None
        ]
        norms.append(math.sqrt(sum(float(square) for square in squares)))
        real(self)
        assert (self.gradient_norm is None) == (clip is None and not self.watched)

    monkeypatch.setattr(WeightUpdates, "apply", apply)

    def values() -> dict[Any, float]:
        items = training(model(), optim=optim, log_every_steps=1)
        rows = [item for item in items if isinstance(item, Measurement)]
        return {(m.metric, m.step): m.value for m in rows if m.metric in {"train_loss", "accuracy"}}

    unwatched = values()  # no message is due: the clock stands
    assert steps(said) == []
    norms.clear()
    clock.tick = 1.0
    assert values() == unwatched
    found = [m.step for m in steps(said)]
    assert [step.gradient_norm for step in found] == pytest.approx(norms, rel=1e-5)
    for step in found:
        assert step.step_time_s > 0
        assert step.examples_per_s == pytest.approx(8 / step.step_time_s)
        assert step.tokens_per_s > step.examples_per_s
        assert 0 <= step.data_wait_share <= 1
        assert step.process_bytes > 2**20
        assert step.gpu_bytes is None


def test_a_resumed_training_says_so_and_counts_its_own_steps(
    tmp_path: Path, clock: Clock, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.tick = 1.0
    optim = OptimConfig(steps=100, batch_size=8, warmup_steps=0)
    spent = Clock()  # a step takes so long, by the trainer's clock
    monkeypatch.setattr("lra.runners.training.loop.time", SimpleNamespace(perf_counter=spent))
    real, pace_s = Trainer.advance, 0.01

    def advance(self: Trainer, batch: Any) -> torch.Tensor:
        spent.now += pace_s
        if self.step == 89 and pace_s < 1:
            self.stop.set()  # type: ignore[attr-defined]
        return real(self, batch)

    def fit(self: Trainer, stop: Any) -> Iterator[Any]:
        self.stop = stop  # type: ignore[attr-defined]
        return real_fit(self, stop)

    real_fit = Trainer.fit
    monkeypatch.setattr(Trainer, "advance", advance)
    monkeypatch.setattr(Trainer, "fit", fit)
    with pytest.raises(Interrupted):
        list(training(model(), folder=tmp_path, optim=optim))
    said.clear()
    pace_s = 20.0  # the machine is slower now
    list(training(model(), folder=tmp_path, optim=optim))
    assert Event(level=logging.INFO, text="resumed at step 90") in said
    left = {m.done: m.left_s for m in steps(said)}
    assert left == pytest.approx({step: 20.0 * (100 - step) for step in range(91, 101)})


def test_the_loss_is_read_only_when_a_message_is_due(
    clock: Clock, said: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading it waits for a GPU; here a device that is none of ours stands for one."""
    reads: list[int] = []

    class Watched(torch.Tensor):
        def __float__(self) -> float:
            reads.append(1)
            return float(self.as_subclass(torch.Tensor))

    real = Trainer.advance

    def advance(self: Trainer, batch: Any) -> torch.Tensor:
        self.device = CPU
        clock.now += 0.3
        loss = real(self, batch).as_subclass(Watched)
        self.device = SimpleNamespace(type="another")  # type: ignore[assignment]
        return loss

    monkeypatch.setattr(Trainer, "advance", advance)
    trainer = trainer_of(model(), log_every_steps=100)
    trainer.device = SimpleNamespace(type="another")  # type: ignore[assignment]
    list(trainer.fit(threading.Event()))
    assert 1 <= len(steps(said)) <= 4  # of twelve steps in 3.6 seconds
    assert len(reads) == len(steps(said)) + 1  # and the row of the last step

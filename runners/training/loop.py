"""The one training loop: any model on any task, resumable to the bit.

The loss of a step is one formula, `runners.training.objective`: the weighted mean of the losses of
the items of the effective batch, plus the penalties. Accumulation over micro-batches divides by the
weight of the whole batch, so that the gradient is that of the batch.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor

from models.backbone.model import Backbone, Outcome
from models.mixer import AfterStep, State
from runners.isolation.progress import EVERY_S, MEASURING_S, phase, ready, report_progress
from runners.measurement.device import autocast
from runners.measurement.hardware import HardwareProfile, Precision
from runners.measurement.measure import process_peak_bytes
from runners.records import Diverged, Interrupted, Measurement, Outcomes, digest
from runners.training.checkpoint import Checkpoints
from runners.training.config import Keep, TrainConfig, check_together
from runners.training.data_check import check_data
from runners.training.evaluate import SplitScores, evaluate, goodness, score_rows
from runners.training.objective import objective
from runners.training.optim import OptimConfig
from runners.training.pace import Pace
from runners.training.prefetch import BatchPosition, Prefetch, masks_of, rows_of, to_device
from runners.training.recurrent_state import RecurrentStates, remembered
from runners.training.resume import fitting, must_agree
from runners.training.stages import TrainingStage, TrainingStages
from runners.training.updates import WeightUpdates
from runners.training.watching import step_progress
from tasks.task import Batch, Task, Windowed

Item = Measurement | Outcomes

log = logging.getLogger(__name__)


class Trainer:
    """The state of one training run."""

    def __init__(
        self,
        model: Backbone,
        task: Task,
        *,
        optim: OptimConfig,
        config: TrainConfig,
        hardware: HardwareProfile,
        seed: int,
        checkpoints: Checkpoints,
        judge: Callable[..., Outcome] | None = None,
    ) -> None:
        self.device = torch.device(str(hardware.device))
        self.model, self.task, self.judged = model.to(self.device), task, judge or model
        self.optim, self.config, self.hardware = optim, config, hardware
        self.seed, self.checkpoints = seed, checkpoints
        check_together(optim, config, model.config)
        self.stages = TrainingStages(config.stages, optim)
        self.stages.check_windows(task)
        self.stage = self.stages.at(0)
        self.updates = WeightUpdates(model, optim, half=hardware.precision is Precision.float16)
        self.hooks = [module for module in model.modules() if isinstance(module, AfterStep)]
        self.generator = torch.Generator().manual_seed(seed + 1)
        """For `after_step`; on the CPU, equal on every rank."""
        self.streams = RecurrentStates(model, remembered(model.config, task, training=True))
        self.step = self.examples = 0
        self.position = BatchPosition(0, 0)
        self.running = torch.zeros((), device=self.device, dtype=torch.float64)
        self.since, self.validated = 0, -1 if config.evaluate_first else 0
        self.spent_s = self.window_s = self.waited_s = self.saved_at = 0.0
        self.step_times: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        if hardware.compile:
            for block in model.blocks:
                block.compile()

    def run(self, stop: threading.Event) -> Iterator[Item]:
        """Train from the last checkpoint on, then evaluate."""
        check_data(self.model, self.task, self.stages, self.config)
        torch.manual_seed(self.seed)
        state = fitting(self.checkpoints, self.state(), self.updates, self.empty_streams)
        if state is not None:
            self.restore(state)
        for row in self.rows:
            yield Measurement(**row)
        try:
            if self.step < self.optim.steps or self.due():
                yield from self.fit(stop)
            yield from self.conclude(stop)
        except Diverged:
            yield from self.bookkeeping()
            raise

    def fit(self, stop: threading.Event) -> Iterator[Item]:
        """Take the steps that are left. Only the steps are on the clock."""
        self.saved_at = time.perf_counter()
        pace = Pace(self.step, self.optim.steps, self.config.evaluate_every_steps)
        self.model.train()
        phase("first step")
        for stage in self.stages.parts:
            if self.step <= stage.end:
                yield from self.fit_stage(stage, pace, stop)

    def fit_stage(self, stage: TrainingStage, pace: Pace, stop: threading.Event) -> Iterator[Item]:
        """Take the steps that are left of one stage."""
        every_s = EVERY_S if self.device.type == "cpu" else MEASURING_S
        self.stage, self.streams.own_memory = stage, stage.memory
        if stage.anew and self.step == stage.first:
            self.begin_epoch()
            pace.changed()
        task = self.config.read(stage.of(self.task))
        with Prefetch(task, stage.batch_size, self.seed, self.position) as source:
            source.waited_s = self.waited_s
            while True:
                if self.due():
                    begun = time.perf_counter()
                    yield from self.validate(stop)
                    pace.validated(time.perf_counter() - begun)
                if self.step == stage.end:
                    return
                begun = time.perf_counter()
                self.position, batch = source.next()
                self.updates.watched = ready(every_s)
                loss = self.advance(batch)
                self.running += loss
                self.since += 1
                if self.device.type == "cpu":
                    self.check(float(loss))
                logging_now = self.step % self.config.log_every_steps == 0 or self.step == stage.end
                # Reading the sum waits for the device: it belongs to the time of the steps.
                mean = float(self.running) / self.since if logging_now else 0.0
                seen = float(loss) if ready(every_s) else None  # waits too, so now and then only
                spent = time.perf_counter() - begun
                self.window_s += spent
                pace.stepped(self.step, spent)
                self.waited_s = source.waited_s
                if logging_now:
                    self.check(mean)
                    self.spent_s += self.window_s
                    self.step_times.append(self.window_s / self.since)
                    self.running.zero_()
                    self.since, self.window_s = 0, 0.0
                    yield self.note(metric="train_loss", value=mean, step=self.step)
                if seen is not None:
                    on_clock_s = self.spent_s + self.window_s
                    report_progress(
                        step_progress(
                            batch,
                            step=self.step,
                            steps=self.optim.steps,
                            loss=seen,
                            pace=pace,
                            left_s=pace.left_s(self.step, self.stages.ahead(self.step, self.task)),
                            updates=self.updates,
                            wait_share=self.waited_s / max(on_clock_s, 1e-9),
                            device=self.device,
                        )
                    )
                unsaved_s = time.perf_counter() - self.saved_at
                if stop.is_set() or unsaved_s > self.config.checkpoint_every_s:
                    self.save()
                    self.saved_at = time.perf_counter()
                    if stop.is_set():
                        raise Interrupted(f"stopped after step {self.step}; resume to go on")

    def begin_epoch(self) -> None:
        """Leave what is left of an epoch, and what is remembered of it."""
        if self.position.number:
            self.position = BatchPosition(self.position.epoch + 1, 0)
        self.streams.forget()

    def empty_streams(self, step: int) -> State:
        """Return what the model remembers before the first token of a batch like that of `step`."""
        stage = self.stages.at(step)
        return self.streams.empty(stage.batch_size, stage.memory)

    def advance(self, batch: Batch) -> Tensor:
        """Take one step, which need not end with an update; return its loss, detached."""
        stage = self.stage
        stretch = self.config.stretch(batch.tokens.shape[-1], stage.window(self.task))
        self.updates.begin(self.step, stage.learning_rate_scale * stretch)
        batch = to_device(batch, self.device)
        rows = batch.target.shape[0]
        micro = stage.micro_batch_size or rows
        total = float(batch.target.numel()) if batch.weight is None else batch.weight.sum()
        loss = torch.zeros((), device=self.device)
        self.streams.begin(batch.reset)
        for first in range(0, rows, micro):
            some = slice(first, first + micro)
            part = batch if micro >= rows else rows_of(batch, some)
            with autocast(self.hardware):
                outcome = self.judged(
                    part.tokens,
                    part.target,
                    part.keep,
                    self.streams.of(some),
                    self.optim.label_smoothing,
                    layout=masks_of(part),
                )
                share = part.target.shape[0] / rows
                part_loss = objective(outcome, part.weight, total, share)
            self.updates.backward(part_loss / stage.accumulate)
            loss += part_loss.detach()
            self.streams.add(outcome.state)
        self.streams.end()
        moves = stage.moves(self.step)
        if moves:
            self.updates.apply()
        self.step += 1
        self.examples += rows
        with torch.no_grad():
            for hook in self.hooks:
                hook.after_step(self.step, self.generator)
        if moves and self.updates.average:
            self.updates.average.update(self.step - 1)
        return loss

    def check(self, loss: float) -> None:
        """Raise `Diverged` for a loss that is no finite number."""
        if not math.isfinite(loss):
            rate = self.updates.rate(self.step - 1)
            raise Diverged(
                f"the training loss was {loss} at step {self.step} of {self.optim.steps} with "
                f"learning rate {rate:.3g}; {_CALMER}"
            )

    def due(self) -> bool:
        """Tell whether validation comes after this step and is still to be done."""
        every = self.config.evaluate_every_steps
        if not every or self.step == self.validated:
            return False
        return self.step % every == 0 or self.step == self.optim.steps

    def validate(self, stop: threading.Event) -> Iterator[Item]:
        """Evaluate the validation split during training; remember the best weights."""
        few = self.config.validation_examples
        found = self.judge("validation", stop, few, weights=self.updates.evaluated())
        split_labels = {"split": "validation"}
        for name, value in found.measured.items():
            yield self.note(metric=name, value=value, step=self.step, labels=split_labels)
        score = goodness(found.measured, self.task.spec.metric)
        if self.config.keep is Keep.best and score > self.best.get("score", -math.inf):
            with self.updates.evaluated():
                weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
            self.best = {"score": score, "step": self.step, "weights": weights}
        self.updates.judged(score)
        self.validated = self.step
        self.model.train()

    def judge(
        self,
        split: str,
        stop: threading.Event,
        at_most: int | None = None,
        *,
        weights: AbstractContextManager[None] | None = None,
    ) -> SplitScores:
        """Evaluate one split, or its first examples; give way to a stop signal.

        Args:
            split: Of the task.
            stop: Set by the signal.
            at_most: So many examples; None = all.
            weights: Gives the model others meanwhile; None = those that it has.
        """

        def give_way() -> None:
            if stop.is_set():
                raise Interrupted(f"stopped while evaluating after step {self.step}")

        try:
            with weights or nullcontext(), autocast(self.hardware):
                found = evaluate(
                    self.model,
                    self.task,
                    split,
                    batch_size=self.config.evaluation_batch_size,
                    device=self.device,
                    each=give_way,
                    examples=at_most,
                )
        except Interrupted:
            self.save()  # the weights that are trained, which the model has again
            raise
        loss = found.measured["loss"]
        if not math.isfinite(loss):
            at = f"step {self.step} of {self.optim.steps}"
            raise Diverged(f"the {split} loss was {loss} after {at}; {_CALMER}")
        return found

    def conclude(self, stop: threading.Event) -> Iterator[Item]:
        """Evaluate with the weights that are kept, and yield the final rows."""
        self.save()  # an interruption from here on repeats the evaluation only
        average = self.updates.begun
        labels = {"weights": "average" if average else "last"}
        if self.best:
            self.model.load_state_dict(self.best["weights"])
            which = "average, best validation" if average else "best validation"
            labels = {"weights": f"{which}, step {self.best['step']}"}
        elif average:
            average.settle()
        for split in self.config.evaluate_splits:
            found = self.judge(split, stop)
            yield from score_rows(found, labels)
            yield found.outcomes
        yield from self.bookkeeping()
        self.checkpoints.finish(self.model.state_dict())

    def bookkeeping(self) -> Iterator[Measurement]:
        """Yield what the run cost."""
        times = tuple(self.step_times)
        spent = self.spent_s + self.window_s
        count = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        if times:
            yield Measurement(metric="train_step_time", value=median(times), samples=times)
        yield Measurement(metric="train_time", value=spent)
        yield Measurement(metric="data_wait", value=self.waited_s / max(spent, 1e-9))
        yield Measurement(metric="examples_seen", value=float(self.examples))
        if self.config.stages and isinstance(self.task, Windowed):
            tokens = self.stages.tokens(self.step, self.task)
            yield Measurement(metric="tokens_seen", value=float(tokens))
        yield Measurement(metric="parameters", value=float(count))
        yield Measurement(metric="process_peak_bytes", value=float(process_peak_bytes()))

    def note(
        self, *, metric: str, value: float, step: int, labels: Mapping[str, str] | None = None
    ) -> Measurement:
        """Make a row that a resumed run yields again."""
        row = Measurement(metric=metric, value=value, step=step, labels=dict(labels or {}))
        self.rows.append({key: getattr(row, key) for key in ("metric", "value", "step", "labels")})
        return row

    def identity(self) -> str:
        """Return a hash of what must agree before a checkpoint may be continued."""
        shapes = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        config = must_agree(self.config, but=self.config.incidental)
        options = [must_agree(self.optim), config, str(self.hardware.precision)]
        return digest([self.seed, self.task.spec.data_hash, options, shapes])

    def state(self) -> dict[str, Any]:
        """Return everything that decides how the run goes on."""
        cuda = self.device.type == "cuda"
        return {
            "identity": self.identity(),
            "model": self.model.state_dict(),
            **self.updates.state(),
            "random": torch.get_rng_state(),
            "generator": self.generator.get_state(),
            "running": self.running,
            "streams": self.streams.state,
            "best": self.best,
            "rows": self.rows,
            "step_times": self.step_times,
            "place": [self.position.epoch, self.position.number],
            **({"gradients": self.gradients()} if self.stages.accumulates else {}),
            **{name: getattr(self, name) for name in _PLAIN},
            **({"cuda_random": torch.cuda.get_rng_state()} if cuda else {}),
        }

    def gradients(self) -> dict[str, Tensor]:
        """Return what was accumulated since the last update, by parameter."""
        named = self.model.named_parameters()
        return {name: own.grad for name, own in named if own.grad is not None}

    def save(self) -> None:
        """Write the state."""
        self.checkpoints.save(self.state())
        log.debug("checkpoint of step %d written", self.step)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state in which `misfit` found no fault."""
        self.model.load_state_dict(state["model"])
        self.updates.restore(state)
        torch.set_rng_state(state["random"])
        self.generator.set_state(state["generator"])
        self.running = state["running"].to(self.device)
        self.streams.restore(state["streams"])
        for name, gradient in state.get("gradients", {}).items():
            self.model.get_parameter(name).grad = gradient.to(self.device)
        self.best, self.rows = state["best"], state["rows"]
        self.step_times, self.position = state["step_times"], BatchPosition(*state["place"])
        for name in _PLAIN:
            setattr(self, name, state[name])
        if self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_random"])


_PLAIN = ("step", "since", "examples", "validated", "spent_s", "window_s", "waited_s")
_CALMER = "lower optim.peak_learning_rate, warm up for longer, or set optim.clip"

"""The one training loop: any model on any task, resumable to the bit.

The loss of a step is the weighted mean of the losses of all items in the batch, plus the penalties;
the gradients of micro-batches add up to that of the batch (`lra.runners.training.objective`).

Numbers for the dashboard are read after the loss, which waits for the device; they change nothing.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from lra.models.backbone.model import Backbone, Outcome
from lra.models.kernels.door import check_used, kernel_labels
from lra.models.mixer import AfterStep, State, Unsupported
from lra.models.state import size_bytes
from lra.runners.isolation.progress import (
    EVERY_S,
    MEASURING_S,
    phase,
    ready,
    report_progress,
)
from lra.runners.measurement.device import autocast
from lra.runners.measurement.disturbance import shares_between
from lra.runners.measurement.hardware import HardwareProfile, KernelChoice, Precision
from lra.runners.measurement.measure import process_peak_bytes
from lra.runners.measurement.witnesses import Counters
from lra.runners.records import DISTURBED, Diverged, Interrupted, Measurement, Outcomes, digest
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.config import Keep, TrainConfig, check_together
from lra.runners.training.data_check import check_data
from lra.runners.training.evaluate import SplitScores, evaluate, goodness, score_rows
from lra.runners.training.optim import OptimConfig
from lra.runners.training.pace import Pace
from lra.runners.training.parallel.crowding import crowding_reason
from lra.runners.training.parallel.gradients import PartLoss, shard
from lra.runners.training.parallel.ranks import Ranks
from lra.runners.training.parallel.shards import gather_tree
from lra.runners.training.parallel.state import Together, rank_seed, restore_random
from lra.runners.training.prefetch import (
    BatchPosition,
    Prefetch,
    asked_of,
    rows_of,
    to_device,
)
from lra.runners.training.recurrent_state import RecurrentStates, remembered_tokens
from lra.runners.training.resume import must_agree, resumable_state
from lra.runners.training.stages import TrainingStage, TrainingStages, check_batch_parts
from lra.runners.training.step_progress import step_progress
from lra.runners.training.target import reached_step, target_row
from lra.runners.training.updates import WeightUpdates
from lra.tasks.diagnostics.base import DiagnosticTask
from lra.tasks.task import Batch, Task, WindowedTask

Item = Measurement | Outcomes

log = logging.getLogger(__name__)


class Trainer:
    """One training: the model, its optimiser, and all that a checkpoint saves.

    Args:
        model: The model, which is trained in place.
        task: The task, with prepared data.
        optim: Options of the optimiser, its schedule and its batches.
        config: Options of the training.
        hardware: Device and precision.
        seed: Seed of the order of batches and of all random draws.
        checkpoints: Saves states and final weights.
        judge: Function that is called on training batches instead of the model, as in distillation;
            None: the model.
        ranks: The processes that train together; None: this process alone.
        stop_at: Thresholds by metric; the first validation that reaches all ends the training.
    """

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
        ranks: Ranks | None = None,
        stop_at: Mapping[str, float] | None = None,
    ) -> None:
        self.device = torch.device(str(hardware.device))
        self.model, self.task, self.ranks = model.to(self.device), task, ranks or Ranks()
        self.optim, self.config, self.hardware = optim, config, hardware
        self.seed, self.checkpoints = seed, checkpoints
        check_together(optim, config, model.config)
        self.stages = TrainingStages(config.stages, optim)
        self.stages.check_windows(task)
        check_batch_parts(model.by_batch, self.stages, self.ranks.size)
        self.stage = self.stages.stage_at(0)
        self.window = self.stage.window(self.task)
        """Tokens of a training window in this stage."""
        self.part_loss = PartLoss(model, judge or model, optim.label_smoothing)
        if self.ranks.sharded:
            shard(model, optim, self.device)
        self.updates = WeightUpdates(model, optim, half=hardware.precision is Precision.float16)
        self.hooks = [module for module in model.modules() if isinstance(module, AfterStep)]
        self.generator = torch.Generator().manual_seed(seed + 1)
        """Random numbers for `after_step`, on the CPU, equal in every process."""
        self.streams = RecurrentStates(model, remembered_tokens(model.config, task, training=True))
        self.step = self.examples = 0
        self.end = config.until_step or optim.steps
        self.stop_at, self.reached = stop_at or {}, False
        """The target, and whether a validation has reached it, which the saved rows tell."""
        self.position = BatchPosition(0, 0)
        # Sum and number of the losses since the last row; last validated step (-1: none yet).
        self.running = torch.zeros((), device=self.device, dtype=torch.float64)
        self.since, self.validated = 0, -1 if config.evaluate_first else 0
        # Seconds of steps before and since that row, and of waiting; when it was last saved.
        self.spent_s = self.window_s = self.waited_s = self.saved_at = 0.0
        self.step_times: list[float] = []
        self.counters = Counters()
        self.begun = self.counters.process_times()
        self.rows: list[dict[str, Any]] = []
        self.best: dict[str, Any] = {}
        if hardware.compile:
            for block in model.blocks:
                block.compile()
        self.together = None if self.ranks.alone else Together(self.part_loss, self.ranks)

    def run(self, stop: threading.Event, earlier: Path | None = None) -> Iterator[Item]:
        """Train the remaining steps, evaluate, and yield all rows, also those of earlier steps.

        Args:
            stop: If a signal sets it, the training saves its state and raises `Interrupted`.
            earlier: Folder of a shorter training. This training continues from its state if it has
                no checkpoint yet.
        """
        check_data(self.model, self.task, self.stages, self.config)
        torch.manual_seed(rank_seed(self.seed, self.ranks.rank))
        source = self.checkpoints if self.checkpoints.present() else Checkpoints(earlier)
        state = resumable_state(source, self.state(), self.updates, self.empty_streams)
        if state is not None:
            self.restore(state)
        if self.together is not None:
            self.together.begin(self.step, self.spent_s + self.window_s)
        for row in self.rows:
            yield Measurement(**row)
        try:
            if not self.reached and (self.step < self.end or self.due()):
                yield from self.fit(stop)
            yield from self.conclude(stop)
        except Diverged:
            yield from self.bookkeeping()
            raise

    def fit(self, stop: threading.Event) -> Iterator[Item]:
        """Train the remaining steps of all stages, and yield rows. Only steps count as time."""
        self.saved_at = time.perf_counter()
        pace = Pace(self.step, self.end, self.config.evaluate_every_steps)
        self.model.train()
        phase("first step")
        for stage in self.stages.parts:
            if not self.reached and self.step <= stage.end and stage.first < self.end:
                yield from self.fit_stage(stage, pace, stop)

    def fit_stage(self, stage: TrainingStage, pace: Pace, stop: threading.Event) -> Iterator[Item]:
        """Train the remaining steps of one stage, and yield rows; `pace` measures their speed."""
        every_s = EVERY_S if self.device.type == "cpu" else MEASURING_S
        self.stage, self.streams.stage_memory = stage, stage.memory
        self.window = stage.window(self.task)
        if stage.new_epoch and self.step == stage.first:
            self.begin_epoch()
            pace.changed()
        task = self.config.read(stage.apply_to(self.task))
        with Prefetch(task, stage.batch_size, self.seed, self.position) as source:
            source.waited_s = self.waited_s
            while True:
                if self.due():
                    start = time.perf_counter()
                    yield from self.validate(stop)
                    pace.validated(time.perf_counter() - start)
                if self.reached or self.step in (stage.end, self.end):
                    return
                start = time.perf_counter()
                self.position, batch = source.next()
                # Sharded weights: all processes would have to compute the norm together.
                self.updates.watched = not self.ranks.sharded and ready(every_s)
                requests = stop.is_set(), self.overdue()  # of this process; sent with the loss
                loss = self.counted_step(batch, requests)
                check_used()
                self.running += loss
                self.since += 1
                if self.device.type == "cpu":
                    self.check(float(loss))
                is_logged = self.step % self.config.log_every_steps == 0 or self.step == stage.end
                # Reading the sum waits for the device, which belongs to the time of the steps.
                mean = float(self.running) / self.since if is_logged else 0.0
                # Reading the loss waits, too, so progress is reported once in `every_s` seconds.
                shown_loss = float(loss) if ready(every_s) else None
                spent_s = time.perf_counter() - start
                self.window_s += spent_s
                pace.stepped(self.step, spent_s)
                self.waited_s = source.waited_s
                if is_logged:
                    self.check(mean)
                    self.spent_s += self.window_s
                    self.step_times.append(self.window_s / self.since)
                    self.running.zero_()
                    self.since, self.window_s = 0, 0.0
                    for metric, value, labels in self.part_loss.losses(mean, self.ranks):
                        yield self.note(metric=metric, value=value, step=self.step, labels=labels)
                if shown_loss is not None:
                    on_clock_s = self.spent_s + self.window_s
                    report_progress(
                        step_progress(
                            batch,
                            step=self.step,
                            steps=self.end,
                            loss=shown_loss,
                            pace=pace,
                            left_s=pace.left_s(self.step, self.ahead()),
                            updates=self.updates,
                            wait_share=self.waited_s / max(on_clock_s, 1e-9),
                            device=self.device,
                        )
                    )
                stopping, saving = self.ranks.decided(stop.is_set(), self.overdue())
                if stopping or saving:
                    self.save()
                    self.saved_at = time.perf_counter()
                    if stopping:
                        raise Interrupted(
                            f"stopped after step {self.step}; rerun the command to resume"
                        )

    def ahead(self) -> float | None:
        """Return the remaining tokens divided by the tokens of the last step.

        None if `until_step` ends the training early; then the remaining steps are counted.
        """
        ends_early = self.end < self.optim.steps
        return None if ends_early else self.stages.ahead(self.step, self.task)

    def overdue(self) -> bool:
        """Return whether it is time to write the next checkpoint."""
        return time.perf_counter() - self.saved_at > self.config.checkpoint_every_s

    def begin_epoch(self) -> None:
        """Skip the rest of an epoch, and clear the recurrent states carried between batches."""
        if self.position.number:
            self.position = BatchPosition(self.position.epoch + 1, 0)
        self.streams.forget()

    def empty_streams(self, step: int) -> State:
        """Return an empty recurrent state for the batch size and memory of the stage at `step`."""
        stage = self.stages.stage_at(step)
        return self.streams.empty(stage.batch_size, stage.memory)

    def counted_step(self, batch: Batch, requests: tuple[bool, bool]) -> Tensor:
        """Train one step and return its loss; several processes also count tokens and bytes sent.

        Args:
            batch: The whole batch; each process computes its part of the rows.
            requests: Whether this process asks all processes to stop, and whether to save.
        """
        if self.together is None:
            return self.advance(batch)
        return self.together.counted_step(partial(self.advance, batch, requests), batch)

    def advance(self, batch: Batch, requests: tuple[bool, bool] = (False, False)) -> Tensor:
        """Train one step on a batch; return its loss, a detached scalar, summed over processes.

        The step updates the weights only if it is the last of `stage.accumulate` batches.

        Args:
            batch: The whole batch; each process computes its part of the rows.
            requests: Whether this process asks to stop, and whether to save; sent with the loss.
        """
        stage = self.stage
        rate_factor = self.config.stretch(batch.tokens.shape[2], self.window)
        self.updates.begin(self.step, stage.learning_rate_scale * rate_factor, stage.only)
        all_rows, updates_now = batch.target.shape[0], stage.moves(self.step)
        total_weight: Tensor | float = float(batch.target.numel())
        if batch.weight is not None:
            total_weight = batch.weight.sum()
            # A batch that asks nothing has loss 0 and gradients 0.
            total_weight = total_weight.where(total_weight != 0, 1.0).to(self.device)
        part = self.ranks.part_of(batch)
        batch = to_device(part, self.device)
        rows = batch.target.shape[0]
        micro = stage.micro_batch_size or rows
        loss = torch.zeros((), device=self.device)
        self.part_loss.penalties.clear()
        self.streams.begin(batch.reset)
        for first in range(0, rows, micro):
            micro_rows, last = slice(first, first + micro), first + micro >= rows
            micro_batch = batch if micro >= rows else rows_of(batch, micro_rows)
            with ExitStack() as context:
                if self.together is not None:
                    context.enter_context(self.together.adding(last=last and updates_now))
                with autocast(self.hardware):
                    row_share = micro_batch.target.shape[0] / all_rows
                    call = self.part_loss if self.together is None else self.together.call
                    before = self.streams.rows_of(micro_rows)
                    asked = asked_of(rows_of(part, micro_rows), self.device)
                    part_loss, state = call(micro_batch, asked, before, total_weight, row_share)
                loss = loss + part_loss.detach()
                if last and self.together is not None:
                    enclosed = self.together.enclosed if updates_now else None
                    self.ranks.send(loss, *requests, enclosed=enclosed)
                self.updates.backward(part_loss / stage.accumulate)
            self.streams.add(state)
        if self.together is not None:
            loss = self.ranks.received(loss)
        self.streams.end()
        moved = updates_now and self.updates.apply()
        self.step += 1
        self.examples += all_rows
        with torch.no_grad():
            for hook in self.hooks if updates_now else ():
                hook.after_step(self.stages.updates(self.step), self.generator)
        if moved and self.updates.average:
            self.updates.average.update()
        return loss

    def check(self, loss: float) -> None:
        """Raise `Diverged` if a loss is not finite."""
        if not math.isfinite(loss):
            rate = self.updates.rate(self.step - 1)
            raise Diverged(
                f"the training loss was {loss} at step {self.step} of {self.optim.steps} with "
                f"learning rate {rate:.3g}; {_ADVICE}"
            )

    def due(self) -> bool:
        """Return whether to validate now; a step is validated at most once."""
        interval = self.config.evaluate_every_steps
        if not interval or self.step == self.validated:
            return False
        return self.step % interval == 0 or self.step == self.optim.steps

    def validate(self, stop: threading.Event) -> Iterator[Item]:
        """Evaluate the validation split during training, yield its rows, save the best weights."""
        at_most = self.config.validation_examples
        scores = self.judge("validation", stop, at_most, weights=self.updates.evaluated())
        split_labels = {"split": "validation"}
        for name, value in scores.measured.items():
            yield self.note(metric=name, value=value, step=self.step, labels=split_labels)
        score = goodness(scores.measured, self.task.spec.metric)
        if self.config.keep is Keep.best and score > self.best.get("score", -math.inf):
            with self.updates.evaluated():
                weights = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
            self.best = {"score": score, "step": self.step, "weights": weights}
        self.updates.judged(score)
        self.validated = self.step
        self.compare_with_target()
        self.model.train()

    def compare_with_target(self) -> None:
        """Set `reached` by the rows of all validations, also of those before a resumption."""
        self.reached = bool(self.stop_at) and reached_step(self.rows, self.stop_at) is not None

    def judge(
        self,
        split: str,
        stop: threading.Event,
        at_most: int | None = None,
        *,
        weights: AbstractContextManager[None] | None = None,
    ) -> SplitScores:
        """Evaluate the model on one split, and return its scores.

        Args:
            split: Name of the split.
            stop: If a signal sets it, the state is saved and `Interrupted` is raised.
            at_most: Only the first `at_most` examples are read; None: all.
            weights: A context in which the model has other weights, such as their average; None:
                the trained weights.
        """

        def check_stop() -> None:
            if self.ranks.any(stop.is_set()):
                raise Interrupted(f"stopped while evaluating after step {self.step}")

        try:
            with weights or nullcontext(), autocast(self.hardware):
                scores = evaluate(
                    self.model,
                    self.task,
                    split,
                    batch_size=self.config.evaluation_batch_size,
                    device=self.device,
                    before_batch=check_stop,
                    examples=at_most,
                    ranks=self.ranks,
                )
        except Interrupted:
            self.save()  # outside `weights`: the model has its trained weights again
            raise
        loss = scores.loss
        if not math.isfinite(loss):
            place = f"step {self.step} of {self.optim.steps}"
            raise Diverged(f"the {split} loss was {loss} after {place}; {_ADVICE}")
        return scores

    def conclude(self, stop: threading.Event) -> Iterator[Item]:
        """Evaluate the final weights, yield the final rows and outcomes, and save the weights."""
        self.save()  # so that an interruption from here on repeats only the evaluation
        average = self.updates.begun
        labels = {"weights": "average" if average else "last"}
        if self.best:
            self.model.load_state_dict(self.best["weights"])
            kind = "average, best validation" if average else "best validation"
            labels = {"weights": f"{kind}, step {self.best['step']}"}
        elif average:
            average.settle()
        for split in self.config.evaluate_splits:
            scores = self.judge(split, stop)
            yield from score_rows(scores, labels)
            yield scores.outcomes
        if self.stop_at:
            yield target_row(self.rows, self.stop_at, self.step)
        yield from self.bookkeeping()
        if self.end < self.optim.steps and not self.reached:
            return  # the checkpoint stays, so that a longer training can continue from it
        weights = gather_tree(self.model.state_dict(), keep=self.ranks.first)
        if self.ranks.first:
            self.checkpoints.finish(weights)
        self.ranks.wait()

    def bookkeeping(self) -> Iterator[Measurement]:
        """Yield the rows of `cost_rows`: time, memory and counts."""
        yield from cost_rows(self)

    def note(
        self, *, metric: str, value: float, step: int, labels: Mapping[str, str] | None = None
    ) -> Measurement:
        """Return a new row; the state stores it, so that a resumed training yields it again."""
        row = Measurement(metric=metric, value=value, step=step, labels=dict(labels or {}))
        self.rows.append({key: getattr(row, key) for key in ("metric", "value", "step", "labels")})
        return row

    def state(self) -> dict[str, Any]:
        """Return everything that decides how the training continues."""
        return saved_state(self)

    def save(self) -> None:
        """Save the state as a checkpoint. All processes must call this; the first one writes."""
        state = self.state()
        if self.together is not None:
            state = self.together.whole_state(state)
        if self.ranks.first:
            self.checkpoints.save(state)
            log.debug("wrote the checkpoint of step %d", self.step)
        self.ranks.wait()

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint: see the function `restore`."""
        restore(self, state)


_ADVICE = "lower optim.peak_learning_rate, raise optim.warmup_steps, or set optim.clip"


def cost_rows(trainer: Trainer) -> Iterator[Measurement]:
    """Yield rows with the time, memory, examples and tokens that a training has used so far."""
    times = tuple(trainer.step_times)
    spent_s = trainer.spent_s + trainer.window_s
    count = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    together = trainer.together
    crowd = "" if together is None else crowding_reason(trainer.ranks, trainer.device)
    mark = {DISTURBED: crowd} if crowd else {}
    forms = {**mark, **kernel_labels()}
    if times:
        step_s = median(times)
        yield Measurement(metric="train_step_time", value=step_s, samples=times, labels=forms)
    yield Measurement(metric="train_time", value=spent_s, labels=forms)
    waiting = shares_between(trainer.begun, trainer.counters.process_times()).waiting
    if waiting is not None:
        yield Measurement(metric="waiting_share", value=waiting)
    yield Measurement(metric="data_wait", value=trainer.waited_s / max(spent_s, 1e-9))
    yield Measurement(metric="examples_seen", value=float(trainer.examples))
    if trainer.config.stages and isinstance(trainer.task, WindowedTask):
        tokens = trainer.stages.tokens(trainer.step, trainer.task)
        yield Measurement(metric="tokens_seen", value=float(tokens))
    yield Measurement(metric="parameters", value=float(count))
    if isinstance(trainer.task, DiagnosticTask):
        yield from _state_rows(trainer)
    peak = trainer.ranks.largest(float(process_peak_bytes()))
    yield Measurement(metric="process_peak_bytes", value=peak)
    if together is not None and together.tokens:
        speed = together.tokens / max(spent_s - together.begun_s, 1e-9)
        yield Measurement(metric="tokens_per_second", value=speed, labels=mark)
        per_device = speed / trainer.ranks.size
        yield Measurement(metric="tokens_per_second_per_device", value=per_device, labels=mark)
        if together.bytes_sent is not None:
            yield Measurement(metric="bytes_sent_per_step", value=together.bytes_sent)


def _state_rows(trainer: Trainer) -> Iterator[Measurement]:
    """Yield the size of the state of one text of the task's length, if the model has a state."""
    try:
        state = trainer.model.initial_state(1, trainer.task.spec.max_length)
    except Unsupported:
        return
    yield Measurement(
        metric="state_bytes", value=float(size_bytes(state)), labels={"batch_size": "1"}
    )


_SAVED_NUMBERS = ("step", "since", "examples", "validated", "spent_s", "window_s", "waited_s")
"""Attributes of a trainer that are plain numbers and belong to its saved state."""


def identity(trainer: Trainer) -> str:
    """Return a hash of seed, data, options and shapes; only a state with this hash resumes."""
    shapes = {name: list(value.shape) for name, value in trainer.model.state_dict().items()}
    config = must_agree(trainer.config, but={*trainer.config.incidental, "until_step"})
    options = [must_agree(trainer.optim), config, str(trainer.hardware.precision)]
    if trainer.hardware.kernels is not KernelChoice.own:
        options.append(str(trainer.hardware.kernels))
    return digest([trainer.seed, trainer.task.spec.data_hash, options, shapes])


def saved_state(trainer: Trainer) -> dict[str, Any]:
    """Return everything that decides how the training continues."""
    cuda = trainer.device.type == "cuda"
    return {
        "identity": identity(trainer),
        "model": trainer.model.state_dict(),
        **trainer.updates.state(),
        "random": torch.get_rng_state(),
        "generator": trainer.generator.get_state(),
        "running": trainer.running,
        "streams": trainer.streams.state,
        "best": trainer.best,
        "rows": trainer.rows,
        "step_times": trainer.step_times,
        "place": [trainer.position.epoch, trainer.position.number],
        **({"gradients": gradients(trainer)} if trainer.stages.accumulates else {}),
        **{name: getattr(trainer, name) for name in _SAVED_NUMBERS},
        **({"cuda_random": torch.cuda.get_rng_state()} if cuda else {}),
    }


def restore(trainer: Trainer, state: dict[str, Any]) -> None:
    """Give a trainer the state of a checkpoint, which `resumable_state` has checked."""
    if trainer.together is not None:
        state = trainer.together.rank_state(state, trainer.model, trainer.updates, trainer.device)
    trainer.model.load_state_dict(state["model"])
    trainer.updates.restore(state)
    restore_random(state, trainer.ranks, trainer.device, trainer.seed)
    trainer.generator.set_state(state["generator"])
    trainer.running = state["running"].to(trainer.device)
    trainer.streams.restore(state["streams"])
    for name, gradient in state.get("gradients", {}).items():
        trainer.model.get_parameter(name).grad = gradient.to(trainer.device)
    trainer.best, trainer.rows = state["best"], state["rows"]
    trainer.compare_with_target()
    trainer.step_times, trainer.position = state["step_times"], BatchPosition(*state["place"])
    for name in _SAVED_NUMBERS:
        setattr(trainer, name, state[name])


def gradients(trainer: Trainer) -> dict[str, Tensor]:
    """Return the gradients accumulated since the last update, by parameter."""
    named = trainer.model.named_parameters()
    return {name: parameter.grad for name, parameter in named if parameter.grad is not None}

"""Stages of a training: windows, batches and updates that change at given steps.

Listed stages come one after the other; what they leave of `optim.steps` has the task's windows and
the batches of `optim`. The optimiser, its state and the schedule go on through all of them. Where
windows, rows or memory change, an epoch of the new windows begins, and streams begin with an empty
state; where none does, text and state go on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.models.mixer import Unsupported
from lra.runners.training.optim import OptimConfig, Statistics
from lra.tasks.task import Task, WindowedTask


@by_name
@dataclass(frozen=True, kw_only=True)
class Stage:
    """One entry of `runner.stages`; null: the value of task and optim."""

    steps: int
    """Batches in this stage."""
    length: int | None = None
    """Tokens of a training window."""
    batch_size: int | None = None
    micro_batch_size: int | None = None
    memory: int | None = None
    """Tokens that a state remembers."""
    accumulate: int = 1
    """Batches in a row whose mean gradient makes one update."""
    learning_rate_scale: float = 1.0
    """Factor of the learning rate in the schedule."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        check_least(0, steps=self.steps)
        check_least(
            1,
            length=self.length,
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            memory=self.memory,
            accumulate=self.accumulate,
        )
        check_positive(learning_rate_scale=self.learning_rate_scale)
        if self.steps % self.accumulate:
            raise ValueError(
                f"accumulate={self.accumulate} leaves {self.steps % self.accumulate} of "
                f"steps={self.steps} without an update: set "
                f"steps={self.steps - self.steps % self.accumulate or self.accumulate}"
            )


def read_stages(listed: Iterable[Any]) -> list[Stage]:
    """Return the stages in mappings. Raises ValueError, naming the entry and its key."""
    names = [entry.name for entry in fields(Stage)]
    needed = [entry.name for entry in fields(Stage) if entry.default is MISSING]
    stages = []
    for number, options in enumerate(listed):
        where = f"stages[{number}]"
        if not isinstance(options, Mapping):
            raise ValueError(f"{where}: got {options!r}; wanted a mapping, as in {{steps: 1000}}")
        for key in options:
            if key not in names:
                near = get_close_matches(str(key), names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"{where}.{key} is none of {', '.join(names)}{hint}")
        for key in needed:
            if key not in options:
                raise ValueError(f"{where}.{key} is missing: wanted a whole number")
        try:
            stage = Stage(**options)
            if stage.steps < 1:  # of what no stage lists there may be none
                raise ValueError("steps must be at least 1: got 0")
            stages.append(stage)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    return stages


def stage_mappings(stages: Iterable[Stage]) -> list[dict[str, Any]]:
    """Return stages as mappings, without default values."""
    return [
        {
            entry.name: value
            for entry in fields(Stage)
            if (value := getattr(stage, entry.name)) != entry.default
        }
        for stage in stages
    ]


class TrainingStage(NamedTuple):
    """A part of a training, with its values."""

    where: str
    """Its name in messages."""
    first: int
    """Steps before it."""
    end: int
    """Step after its last one."""
    length: int | None
    """Tokens of a window; None: the task's."""
    batch_size: int
    micro_batch_size: int | None
    memory: int | None
    """Tokens that a state remembers; None: the value of model or task."""
    accumulate: int
    learning_rate_scale: float
    new_epoch: bool
    """Whether its batches begin an epoch, because windows, rows or memory change."""

    def apply_to(self, task: Task) -> Task:
        """Return the task with the windows of this stage."""
        if self.length is None:
            return task
        assert isinstance(task, WindowedTask), "checked by TrainingStages.check_windows"
        return task.with_windows(self.length)

    def moves(self, step: int) -> bool:
        """Tell whether step number `step`, counted from 0, ends with an update."""
        return (step + 1 - self.first) % self.accumulate == 0

    def window(self, task: Task) -> int:
        """Return the tokens of a training window; for a task without windows, those of a row."""
        if self.length is not None:
            return self.length
        return task.window("train") if isinstance(task, WindowedTask) else task.spec.max_length


class TrainingStages:
    """The parts of a training in order: the listed stages, and the remaining steps.

    Args:
        listed: As `runner.stages` has them.
        optim: Steps in all, and the batches of what is left.

    Raises:
        ValueError: they take more steps than there are, or more rows at once than a batch has.
    """

    def __init__(self, listed: Iterable[Any], optim: OptimConfig) -> None:
        stages, first = read_stages(listed), 0
        total, self.listed = sum(stage.steps for stage in stages), len(stages)
        self.statistics = optim.statistics
        if total > optim.steps:
            raise ValueError(
                f"runner.stages take {total} steps together, more than optim.steps={optim.steps}: "
                f"type optim.steps={total} or more, or shorten a stage"
            )
        if total < optim.steps or not stages:
            stages.append(Stage(steps=optim.steps - total))
        self.parts: list[TrainingStage] = []
        for number, stage in enumerate(stages):
            rows, micro = stage.batch_size or optim.batch_size, stage.micro_batch_size
            where = f"runner.stages[{number}]" if number < self.listed else "optim"
            if micro is not None and micro > rows:
                raise ValueError(
                    f"{where}.micro_batch_size={micro} is more than the batch of {rows} rows in "
                    "this stage: lower it, or remove it"
                )
            before = self.parts[-1] if self.parts else None
            part = TrainingStage(
                where=where,
                first=first,
                end=first + stage.steps,
                length=stage.length,
                batch_size=rows,
                micro_batch_size=micro or optim.micro_batch_size,
                memory=stage.memory,
                accumulate=stage.accumulate,
                learning_rate_scale=stage.learning_rate_scale,
                new_epoch=before is not None
                and (before.length, before.batch_size, before.memory)
                != (stage.length, rows, stage.memory),
            )
            self.parts.append(part)
            first = part.end

    @property
    def accumulates(self) -> bool:
        """Whether an update may come from several batches."""
        return any(part.accumulate > 1 for part in self.parts)

    def stage_at(self, step: int) -> TrainingStage:
        """Return the stage of step number `step`; before the first step, the first stage."""
        return next((part for part in self.parts if step <= part.end), self.parts[-1])

    def updates(self, step: int) -> int:
        """Return the number of updates in the first `step` batches."""
        return sum(
            max(0, min(step, part.end) - part.first) // part.accumulate for part in self.parts
        )

    def ahead(self, step: int, task: Task) -> float:
        """Return the remaining steps, counted by their tokens in steps like the last one."""
        now = self.stage_at(step)
        unit = now.window(task) * now.batch_size
        return sum(
            max(0, part.end - max(part.first, step)) * part.window(task) * part.batch_size / unit
            for part in self.parts
        )

    def tokens(self, step: int, task: Task) -> int:
        """Return the tokens of the windows of the first `step` batches."""
        return sum(
            max(0, min(step, part.end) - part.first) * part.window(task) * part.batch_size
            for part in self.parts
        )

    def check_windows(self, task: Task) -> None:
        """Refuse windows that the task lacks, or that are longer than its model allows.

        Raises:
            ValueError: with the stage, its length, and the way out.
        """
        longest = task.spec.max_length
        for part in self.parts:
            if part.memory is not None and not (
                isinstance(task, WindowedTask) and task.spec.memory
            ):
                raise ValueError(
                    f"{part.where}.memory={part.memory} needs a task that carries a state from "
                    f"batch to batch: got task={task.spec.name} without one; remove memory, or "
                    "type task.regime=memory task.memory=N task.contiguous=true"
                )
            if part.length is None:
                continue
            option = f"{part.where}.length={part.length}"
            if not isinstance(task, WindowedTask):
                raise ValueError(
                    f"{option} needs a task that reads windows of a long text: got "
                    f"task={task.spec.name}; remove length, or choose a language-modelling task"
                )
            if part.length > longest:
                raise ValueError(
                    f"{option} is beyond the {longest} tokens for which the model and its "
                    "positions are built, the larger of task.length and "
                    "task.evaluation_length: shorten the stage, or type "
                    f"task.evaluation_length={part.length}"
                )
            task.with_windows(part.length)

    def check_batches(self, task: Task) -> None:
        """Refuse stages whose batches are larger than the training data.

        Args:
            task: Prepared.

        Raises:
            ValueError: with the stage and what would do.
        """
        for part in self.parts if self.listed else ():
            batches = part.apply_to(task).batches("train", batch_size=part.batch_size, seed=0)
            try:
                first = next(iter(batches), None)
            except ValueError as error:
                raise ValueError(f"{part.where}: {error}") from error
            if first is None:
                raise ValueError(
                    f"{part.where}.batch_size={part.batch_size} is more than the number of "
                    f"examples in the training split of {task.spec.name}: lower it"
                )


def check_batch_parts(by_batch: str, stages: TrainingStages, processes: int) -> None:
    """Refuse to split batches whose rows change each other.

    Args:
        by_batch: The option by which they do, as `name=value`; empty: they do not.
        stages: With rows that are in memory at once, and of which rows statistics are.
        processes: That share the rows of a batch.

    Raises:
        Unsupported: with what parts them, and the way out.
    """
    if not by_batch:
        return
    parting = [
        (f"{stage.where}.micro_batch_size={stage.micro_batch_size}", "null")
        for stage in stages.parts
        if stage.micro_batch_size not in (None, stage.batch_size)
        and stages.statistics is Statistics.batch
    ]
    if processes > 1:
        parting.append((f"hardware.processes={processes}", "1"))
    if parting:
        setting, allowed = parting[0]
        option = by_batch.partition("=")[0]
        parts = "" if allowed == "1" else "; or set optim.statistics=micro_batch"
        raise Unsupported(
            f"{by_batch} takes statistics of all examples of an update: got {setting}, which "
            f"splits them; set it to {allowed}, or choose another {option}{parts}"
        )

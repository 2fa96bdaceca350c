"""Stages of a training: windows, batches and updates that change at given steps.

Listed stages follow each other; the remaining steps of `optim.steps` use the windows of the task
and the batches of `optim`. The optimiser, its state and the schedule continue through all stages.
If windows, rows or memory change, a new epoch begins and recurrent states are emptied; otherwise
text and state continue.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from torch import nn

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.models.mixer import Unsupported
from lra.runners.training.optim import OptimConfig, Statistics
from lra.tasks.task import Task, WindowedTask


@by_name
@dataclass(frozen=True, kw_only=True)
class Stage:
    """One entry of `runner.stages`; an option that is null has the value of task or optim."""

    steps: int
    """Number of batches in this stage."""
    length: int | None = None
    """Tokens of a training window."""
    batch_size: int | None = None
    micro_batch_size: int | None = None
    memory: int | None = None
    """How many tokens a state remembers."""
    accumulate: int = 1
    """One update of the weights uses the mean gradient of so many batches."""
    learning_rate_scale: float = 1.0
    """Factor by which the learning rate of the schedule is multiplied."""
    only: str | None = None
    """Only parameters with this part in their names are trained, such as `index`; null: all."""

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
                f"steps={self.steps} must be a multiple of accumulate={self.accumulate}, so that "
                "every batch is part of an update: set "
                f"steps={self.steps - self.steps % self.accumulate or self.accumulate}"
            )


def read_stages(listed: Iterable[Any]) -> list[Stage]:
    """Return the stages of a list of mappings. Raises ValueError, which names entry and key."""
    names = [entry.name for entry in fields(Stage)]
    needed = [entry.name for entry in fields(Stage) if entry.default is MISSING]
    stages = []
    for number, options in enumerate(listed):
        where = f"stages[{number}]"
        if not isinstance(options, Mapping):
            raise ValueError(
                f"{where}: got {options!r}; wanted a mapping, for example {{steps: 1000}}"
            )
        for key in options:
            if key not in names:
                near = get_close_matches(str(key), names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(
                    f"{where}.{key} is not an option of a stage{hint}; the options are "
                    f"{', '.join(names)}"
                )
        for key in needed:
            if key not in options:
                raise ValueError(f"{where}.{key} is missing: set it to a whole number")
        try:
            stage = Stage(**options)
            if stage.steps < 1:  # only the unlisted last stage may have 0 steps
                raise ValueError("steps must be at least 1: got 0")
            stages.append(stage)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    return stages


def stage_mappings(stages: Iterable[Stage]) -> list[dict[str, Any]]:
    """Return each stage as a mapping of the options that differ from their defaults."""
    return [
        {
            entry.name: value
            for entry in fields(Stage)
            if (value := getattr(stage, entry.name)) != entry.default
        }
        for stage in stages
    ]


class TrainingStage(NamedTuple):
    """A stage whose values are known, and its place in the training."""

    where: str
    """Name of the stage in messages, such as `runner.stages[0]`."""
    first: int
    """Number of steps before the stage."""
    end: int
    """Number of steps up to the end of the stage."""
    length: int | None
    """Tokens of a window; None: the window of the task."""
    batch_size: int
    micro_batch_size: int | None
    memory: int | None
    """How many tokens a state remembers; None: the value of model or task."""
    accumulate: int
    learning_rate_scale: float
    only: str | None
    """Part of the names of parameters that are trained; None: all are."""
    new_epoch: bool
    """Whether a new epoch begins with the stage, because windows, rows or memory change."""

    def apply_to(self, task: Task) -> Task:
        """Return the task with the windows of this stage."""
        if self.length is None:
            return task
        assert isinstance(task, WindowedTask), "checked by TrainingStages.check_windows"
        return task.with_windows(self.length)

    def moves(self, step: int) -> bool:
        """Return whether the weights are updated after step number `step`, counted from 0."""
        return (step + 1 - self.first) % self.accumulate == 0

    def window(self, task: Task) -> int:
        """Return the tokens of a training window, or the longest row of a task without windows."""
        if self.length is not None:
            return self.length
        return task.window("train") if isinstance(task, WindowedTask) else task.spec.max_length


class TrainingStages:
    """All stages of a training in order: the listed ones, then one with the remaining steps.

    Args:
        listed: The mappings in `runner.stages`.
        optim: The number of all steps, and the batches of the remaining ones.

    Raises:
        ValueError: The stages have more steps than `optim.steps`, or a micro-batch has more rows
            than the batch.
    """

    def __init__(self, listed: Iterable[Any], optim: OptimConfig) -> None:
        stages, first = read_stages(listed), 0
        total, self.listed = sum(stage.steps for stage in stages), len(stages)
        self.statistics = optim.statistics
        if total > optim.steps:
            raise ValueError(
                f"runner.stages have {total} steps together, which is more than "
                f"optim.steps={optim.steps}: type optim.steps={total}, or shorten a stage"
            )
        if total < optim.steps or not stages:  # one stage remains even for a training of 0 steps
            stages.append(Stage(steps=optim.steps - total))
        self.parts: list[TrainingStage] = []
        for number, stage in enumerate(stages):
            rows, micro = stage.batch_size or optim.batch_size, stage.micro_batch_size
            where = f"runner.stages[{number}]" if number < self.listed else "optim"
            if micro is not None and micro > rows:
                raise ValueError(
                    f"{where}.micro_batch_size={micro} is more than the {rows} rows of a batch in "
                    "this stage: lower or remove this option"
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
                only=stage.only,
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
        """Return the remaining tokens after `step`, divided by the tokens of one step there."""
        current = self.stage_at(step)
        unit = current.window(task) * current.batch_size
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
        """Check that the task can give each stage its windows and its memory.

        Raises:
            ValueError: It cannot, or a window is longer than the model can read.
        """
        longest = task.spec.max_length
        for part in self.parts:
            if part.memory is not None and not (
                isinstance(task, WindowedTask) and task.spec.memory
            ):
                raise ValueError(
                    f"{part.where}.memory={part.memory} needs a task with a memory, but "
                    f"task={task.spec.name} has none; remove this option, or type "
                    "task.regime=memory task.memory=N task.contiguous=true"
                )
            if part.length is None:
                continue
            option = f"{part.where}.length={part.length}"
            if not isinstance(task, WindowedTask):
                raise ValueError(
                    f"{option} needs a task that reads windows of a long text, but "
                    f"task={task.spec.name} does not; remove length, or choose a "
                    "language-modelling task"
                )
            if part.length > longest:
                raise ValueError(
                    f"{option} is more than the {longest} tokens for which the model is built (the "
                    "larger of task.length and task.evaluation_length): lower it, or type "
                    f"task.evaluation_length={part.length}"
                )
            task.with_windows(part.length)  # raises if the task cannot have such windows

    def check_parts(self, model: nn.Module) -> None:
        """Check that the model has parameters that each stage trains. Raises ValueError if not."""
        names = [name.split(".") for name, _ in model.named_parameters()]
        for part in self.parts:
            if part.only is not None and not any(part.only in name for name in names):
                raise ValueError(
                    f"{part.where}.only={part.only}: no parameter of the model has this part in "
                    "its name; remove it, or choose a model with such a part, such as "
                    "model=indexed, whose index is trained by only=index"
                )

    def check_batches(self, task: Task) -> None:
        """Check that the training data (which must be prepared) have a batch for each stage.

        Raises:
            ValueError: A stage has batches that are larger than the training split.
        """
        # A training without listed stages fails by itself when it reads its first batch.
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
    """Check that no option splits the batches of a model whose rows change each other.

    Args:
        by_batch: The option by which rows of a batch change each other, as `name=value`; "" if
            they do not.
        stages: The stages, which may have micro-batches.
        processes: Number of processes that share the rows of a batch.

    Raises:
        Unsupported: An option splits batches; the message says what to set.
    """
    if not by_batch:
        return
    splitting = [
        (f"{stage.where}.micro_batch_size={stage.micro_batch_size}", "null")
        for stage in stages.parts
        if stage.micro_batch_size not in (None, stage.batch_size)
        and stages.statistics is Statistics.batch
    ]
    if processes > 1:
        splitting.append((f"hardware.processes={processes}", "1"))
    if splitting:
        setting, allowed = splitting[0]
        option, _, _ = by_batch.partition("=")
        advice = "" if allowed == "1" else "; or set optim.statistics=micro_batch"
        raise Unsupported(
            f"{by_batch} computes statistics over all examples of an update, but {setting} splits "
            f"these examples; set it to {allowed}, or choose another {option}{advice}"
        )

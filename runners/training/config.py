"""The options of a training, apart from those of the optimiser."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any, ClassVar

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.models.backbone.config import BackboneConfig, Softmax
from lra.runners.training.optim import OptimConfig, Schedule
from lra.runners.training.stages import TrainingStages, read_stages, stage_mappings
from lra.tasks.task import SPLITS, Task, WindowedTask


class Keep(StrEnum):
    """Which weights the final evaluation uses."""

    last = auto()
    best = auto()
    """The weights with the best validation metric."""


@by_name
@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The options of a training, apart from those of the optimiser."""

    incidental: ClassVar[frozenset[str]] = frozenset({"log_every_steps", "checkpoint_every_s"})
    """Options that change no number, so they are not part of a result's identity."""

    evaluate_every_steps: int = 0
    """The model is validated each time after this many steps; 0: only at the end."""
    evaluate_first: bool = False
    """Whether the model is validated before the first step, too."""
    validation_examples: int | None = None
    """Validation during training uses this many examples, the first ones; None: all."""
    evaluate_splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    """Splits on which the final weights are evaluated."""
    evaluation_batch_size: int = 64
    keep: Keep = Keep.last
    stages: list[dict[str, Any]] = field(default_factory=list)
    """Windows and batches of the first steps, as one mapping for each stage with the options of
    `lra.runners.training.stages.Stage`."""
    window_deviation: float | None = None
    """Standard deviation, in tokens, of window lengths in training; one length is drawn for each
    batch, and the learning rate scales with it (AWD-LSTM, arXiv:1708.02182). None: all windows have
    the same length."""
    halved_windows: float = 0.0
    """For this fraction of batches, lengths are drawn around half of the window."""
    log_every_steps: int = 50
    checkpoint_every_s: float = 300.0
    until_step: int | None = None
    """The training ends after this step, before its schedule ends, and saves its state; None: it
    ends with the schedule."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        object.__setattr__(self, "stages", stage_mappings(read_stages(self.stages)))
        check_least(
            1,
            evaluation_batch_size=self.evaluation_batch_size,
            log_every_steps=self.log_every_steps,
            validation_examples=self.validation_examples,
        )
        check_least(1, until_step=self.until_step)
        check_least(0, evaluate_every_steps=self.evaluate_every_steps)
        allowed = [split for split in SPLITS if split != "train"]
        for split in self.evaluate_splits:
            if split not in allowed or self.evaluate_splits.count(split) > 1:
                raise ValueError(
                    f"evaluate_splits: got {split!r}; wanted one or more of {', '.join(allowed)}, "
                    "none of them twice"
                )
        if self.keep is Keep.best and not self.evaluate_every_steps:
            raise ValueError("keep=best needs evaluate_every_steps above 0: got 0")
        if self.evaluate_first and not self.evaluate_every_steps:
            raise ValueError("evaluate_first=true needs evaluate_every_steps above 0: got 0")
        check_positive(checkpoint_every_s=self.checkpoint_every_s)
        if self.window_deviation is not None and not self.window_deviation > 0:
            raise ValueError(
                f"window_deviation must be positive: got {self.window_deviation}; with null, all "
                "windows have the same length"
            )
        if not 0 <= self.halved_windows < 1:
            raise ValueError(
                f"halved_windows must be at least 0 and below 1: got {self.halved_windows}"
            )
        if self.halved_windows and self.window_deviation is None:
            raise ValueError(
                f"halved_windows={self.halved_windows} has an effect only together with "
                "window_deviation; set halved_windows=0, or set window_deviation"
            )

    def read(self, task: Task) -> Task:
        """Return the task with windows of random lengths if `window_deviation` asks for them.

        Raises:
            ValueError: The task has no windows, or their lengths cannot be drawn.
        """
        if self.window_deviation is None:
            return task
        if not isinstance(task, WindowedTask):
            raise ValueError(
                f"runner.window_deviation={self.window_deviation} needs a task that reads windows "
                f"of a long text, but task={task.spec.name} does not; set it to null"
            )
        return task.with_varied_windows(self.window_deviation, self.halved_windows)

    def check_scores(self, task: Task, *, prepared: bool) -> None:
        """Raise Unsupported if `task` lacks scores that options need; `prepared`: has its data."""

    def stretch(self, length: int, usual: int) -> float:
        """Return the factor of the learning rate for a window of `length` tokens; 1 at `usual`."""
        return 1.0 if self.window_deviation is None else length / usual

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return a label that describes the stages, or no label if there are none."""
        del regime
        stages = (", ".join(f"{k}={v}" for k, v in stage.items()) for stage in self.stages)
        return {"stages": "; ".join(stages)} if self.stages else {}


def check_together(optim: OptimConfig, config: TrainConfig, backbone: BackboneConfig) -> None:
    """Raise ValueError if options of the optimiser do not fit those of the training or model."""
    if optim.schedule is Schedule.plateau and not config.evaluate_every_steps:
        raise ValueError(
            "schedule=plateau needs validation during training, but evaluate_every_steps is 0; "
            "type runner.evaluate_every_steps=N, or choose another schedule"
        )
    if config.until_step is not None and config.until_step >= optim.steps:
        raise ValueError(
            "runner.until_step stops a training before its schedule ends, so it must be below "
            f"optim.steps={optim.steps}: got {config.until_step}; null trains all steps"
        )
    if optim.average_after is not None and not config.evaluate_every_steps:
        raise ValueError(
            f"average_after={optim.average_after} counts validations during training, but "
            "evaluate_every_steps is 0; type runner.evaluate_every_steps=N, or set "
            "average_after=null"
        )
    if optim.label_smoothing and backbone.softmax == Softmax.adaptive:
        raise ValueError(
            f"label_smoothing={optim.label_smoothing} needs the probabilities of all classes, but "
            "softmax=adaptive computes only some of them; set label_smoothing=0, or "
            "model.backbone.softmax=full"
        )
    for stage in TrainingStages(config.stages, optim).parts:
        if stage.accumulate > 1 and config.window_deviation is not None:
            raise ValueError(
                "window_deviation scales the learning rate of an update by the length of its "
                f"window, but {stage.where}.accumulate={stage.accumulate} uses several windows; "
                "set accumulate=1 or window_deviation=null"
            )

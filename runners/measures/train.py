"""Train a model on a task, and yield its curve, its scores and its outcomes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone, Outcome
from lra.models.transfer.files import checkpoint_name, is_checkpoint
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.passes import judged_tokens, padded_length, size
from lra.runners.runner import Passes, Runner, Uncounted, Work
from lra.runners.training.checkpoint import Checkpoints
from lra.runners.training.config import TrainConfig
from lra.runners.training.initial import start_weights
from lra.runners.training.learned_spans import learned_span_rows
from lra.runners.training.loop import Item, Trainer
from lra.runners.training.optim import OptimConfig
from lra.runners.training.parallel.ranks import join_ranks
from lra.runners.training.stages import TrainingStages
from lra.runners.training.stopping import stop_signal
from lra.runners.training.target import check_scores, check_target, target_words
from lra.tasks.task import Task


@by_name
@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig, Runner):
    """A training of the run's model."""

    trains: ClassVar[bool] = True
    parallel: ClassVar[bool] = True
    # The identity has the keys of the named trainings instead.
    incidental: ClassVar[frozenset[str]] = TrainConfig.incidental | {
        "weights",
        "continues",
        "baselines",
    }

    files: ClassVar[tuple[str, ...]] = ("weights",)

    weights: str | None = None
    """Where the initial weights come from: the key (or its first digits) or the folder of a
    finished training, or a checkpoint file of the run's model (.safetensors, or the index of
    several files). None: they are random."""
    continues: str | None = None
    """Key of a training with the same options that ended earlier (`until_step`). If its state
    exists, this training continues from there and gets the same numbers as without a break."""
    tuned: str | None = None
    """The trial from which the options come, as SEARCH/STUDY/TRIAL; it becomes labels of every
    row."""
    transferred: str | None = None
    """How this training differs from those of the search in `tuned`; a label of every row."""
    baselines: bool | None = None
    """Whether a run with the task's baselines is added; None: only in a sweep."""
    stop_at: dict[str, float] | None = None
    """Thresholds of validation scores by metric, for example {accuracy: 0.99}. The training ends at
    the first validation that reaches all of them. None: it trains all steps."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        super().__post_init__()
        check_target(self.stop_at, self.evaluate_every_steps)

    def check_scores(self, task: Task, *, prepared: bool) -> None:
        """Raise Unsupported if the task lacks a score of `stop_at`."""
        check_scores(self.stop_at, task, prepared=prepared)

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return labels: stages, target, and the search that chose the options."""
        names = ("tuned", "study", "trial")
        tuned = self.tuned.rsplit("/", 2) if self.tuned else ()  # search, study and trial
        transferred = {"transferred": self.transferred} if self.transferred else {}
        target = {"stop_at": target_words(self.stop_at)} if self.stop_at else {}
        searched = dict(zip(names, tuned, strict=False))
        return {**super().marks(regime), **searched, **transferred, **target}

    def baseline_split(self, *, several: bool) -> str | None:
        """Return the split on which a report ranks models; None if no baselines are wanted."""
        if not (several if self.baselines is None else self.baselines):
            return None
        return "test" if "test" in self.evaluate_splits else next(iter(self.evaluate_splits), None)

    @property
    def stored_weights(self) -> str | None:
        """Return the key or folder of the training that `weights` names; None for a file."""
        return None if is_checkpoint(self.weights) else self.weights

    @property
    def started_from(self) -> str | None:
        """Return the name of the checkpoint file for tables; None if `weights` names no file."""
        return checkpoint_name(self.weights)

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes of training steps, of validations and of the final evaluation."""
        task, optim, every = work.task, work.optim, self.evaluate_every_steps
        passes: list[Passes] = []
        asked = judged_tokens(task, "train").asked
        for part in TrainingStages(self.stages, optim).parts:
            rows, micro = part.batch_size, part.micro_batch_size
            length = part.length or padded_length(task, "train", rows)[0]
            end = min(part.end, self.until_step or part.end)
            if end > part.first or not passes:  # one entry remains if the training ends at once
                passes.append(Passes(end - part.first, rows, length, True, micro, asked=asked))
        # By split: how many evaluations there are after the training, besides validations in it.
        final_passes = dict.fromkeys(self.evaluate_splits, 1)
        if every:
            final_passes.setdefault("validation", 0)
        for split, final in final_passes.items():
            rows = self.evaluation_batch_size
            length, _ = padded_length(task, split, rows)
            try:
                number = size(task, split)
            except Uncounted as error:
                passes.append(Passes(0, rows, length, False, unknown=str(error)))
                continue
            validations = 0
            if every and split == "validation":
                validations = -(-optim.steps // every) + self.evaluate_first
            validated = min(number, self.validation_examples or number)
            batches = final * -(-number // rows) + validations * -(-validated // rows)
            judged = judged_tokens(task, split)
            rows = min(rows, number)
            passes.append(Passes(batches, rows, length, False, asked=judged.asked))
            if judged.further:  # such as one for each token that a model writes
                passes.append(Passes(batches * judged.further, rows, length, False))
        return passes

    def run(self, work: Work) -> Iterator[Item]:
        """Train the model, and yield curves, scores and outcomes.

        Raises:
            Unsupported: The initial weights do not fit the model.
        """
        model = work.build()
        if self.weights is not None:
            yield from start_weights(model, self.weights, work.stored)
        yield from train(
            model,
            work.task,
            optim=work.optim,
            config=self,
            hardware=work.hardware,
            seed=work.seed,
            checkpoints=work.checkpoints,
            earlier=self._find_earlier_state(work.checkpoints),
            stop_at=self.stop_at,
        )

    def _find_earlier_state(self, checkpoints: Path | None) -> Path | None:
        """Return the folder with the state of the training that this one continues, or None."""
        if checkpoints is None or self.continues is None:
            return None
        cells = checkpoints.parents[2]  # of a path such as cells/3f/3fa9…/checkpoint-…
        return cells / self.continues[:2] / self.continues / checkpoints.name


def train(
    model: Backbone,
    task: Task,
    *,
    optim: OptimConfig,
    config: TrainConfig,
    hardware: HardwareProfile,
    seed: int,
    checkpoints: Path | None,
    judge: Callable[..., Outcome] | None = None,
    earlier: Path | None = None,
    stop_at: Mapping[str, float] | None = None,
) -> Iterator[Item]:
    """Train a model, evaluate it, and yield rows and outcomes.

    Args:
        model: The model, which is trained in place.
        task: The task, with prepared data.
        optim: Optimiser, schedule and batch.
        config: All other options of the training.
        hardware: The device, and the number format of computations.
        seed: Decides the order of batches, and dropout.
        checkpoints: Folder in which the training saves its state; None: it saves nothing.
        judge: Function that computes the outcome of training batches; None: the model does.
        earlier: Folder with the state of a training that ended earlier, from which this training
            continues; None: there is none.
        stop_at: Thresholds by metric; the first validation that reaches all ends the training.

    Raises:
        Diverged: the loss is not finite.
        Interrupted: SIGTERM came; a checkpoint was written, and the next call resumes from it.
    """
    with stop_signal() as stop, join_ranks(hardware) as ranks:
        trainer = Trainer(
            model,
            task,
            optim=optim,
            config=config,
            hardware=hardware,
            seed=seed,
            checkpoints=Checkpoints(checkpoints),
            judge=judge,
            ranks=ranks,
            stop_at=stop_at,
        )
        yield from trainer.run(stop, earlier)
        yield from learned_span_rows(model, task)
        del trainer  # before `join_ranks` ends the group of processes that its objects use

"""Train a model on a task, and yield its curve, its scores and its outcomes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone, Outcome
from lra.models.transfer.files import checkpoint_name, is_checkpoint
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.passes import padded_length, size
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
from lra.tasks.task import Task


@by_name
@dataclass(frozen=True, kw_only=True)
class Train(TrainConfig, Runner):
    """A training of the run's model."""

    trains: ClassVar[bool] = True
    parallel: ClassVar[bool] = True
    # The key of what it names stands in the identity.
    incidental: ClassVar[frozenset[str]] = TrainConfig.incidental | {
        "weights",
        "continues",
        "baselines",
    }

    files: ClassVar[tuple[str, ...]] = ("weights",)

    weights: str | None = None
    """Where to start from: key (or its beginning) or folder of a finished training, or a checkpoint
    of the run's model (.safetensors, or the index of several)."""
    continues: str | None = None
    """Key of a training with the same options that ended earlier (`until_step`). If its state
    exists, this one continues from it, to the same numbers."""
    tuned: str | None = None
    """SEARCH/STUDY/TRIAL from which the options come, as labels of every row."""
    transferred: str | None = None
    """How this training differs from those of that search, as a label of every row."""
    baselines: bool | None = None
    """Whether runs with the task's baselines are added; None: only in a sweep."""

    def marks(self, regime: str) -> Mapping[str, str]:
        """Return the labels of stages and of a search."""
        names = ("tuned", "study", "trial")
        tuned = self.tuned.rsplit("/", 2) if self.tuned else ()
        differs = {"transferred": self.transferred} if self.transferred else {}
        return {**super().marks(regime), **dict(zip(names, tuned, strict=False)), **differs}

    def baseline_split(self, *, several: bool) -> str | None:
        """Return the split on which the report ranks models, if baselines are wanted."""
        if not (several if self.baselines is None else self.baselines):
            return None
        return "test" if "test" in self.evaluate_splits else next(iter(self.evaluate_splits), None)

    @property
    def stored_weights(self) -> str | None:
        """Key or folder of a finished training whose weights a run starts from."""
        return None if is_checkpoint(self.weights) else self.weights

    @property
    def started_from(self) -> str | None:
        """The name of a checkpoint, for tables."""
        return checkpoint_name(self.weights)

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes of the steps, the validations and the final evaluation."""
        task, optim, every = work.task, work.optim, self.evaluate_every_steps
        passes: list[Passes] = []
        for part in TrainingStages(self.stages, optim).parts:
            rows, micro = part.batch_size, part.micro_batch_size
            length = part.length or padded_length(task, "train", rows)[0]
            end = min(part.end, self.until_step or part.end)
            if end > part.first or not passes:
                passes.append(Passes(end - part.first, rows, length, True, micro))
        judged = dict.fromkeys(self.evaluate_splits, 1)
        if every:
            judged.setdefault("validation", 0)
        for split, last in judged.items():
            rows = self.evaluation_batch_size
            length, _ = padded_length(task, split, rows)
            try:
                number = size(task, split)
            except Uncounted as error:
                passes.append(Passes(0, rows, length, False, unknown=str(error)))
                continue
            during = 0
            if every and split == "validation":
                during = -(-optim.steps // every) + self.evaluate_first
            some = min(number, self.validation_examples or number)
            batches = last * -(-number // rows) + during * -(-some // rows)
            passes.append(Passes(batches, min(rows, number), length, False))
        return passes

    def run(self, work: Work) -> Iterator[Item]:
        """Yield curves, scores and outcomes.

        Raises:
            Unsupported: The weights that it starts from have no place in the model.
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
            earlier=self._earlier(work.checkpoints),
        )

    def _earlier(self, checkpoints: Path | None) -> Path | None:
        """Return where the training that this one continues has its state."""
        if checkpoints is None or self.continues is None:
            return None
        cells = checkpoints.parents[2]
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
) -> Iterator[Item]:
    """Train, evaluate, and yield rows and outcomes.

    Args:
        model: What is trained.
        task: Prepared.
        optim: Optimiser, schedule and batch.
        config: What else a training does.
        hardware: The device, and the number format of computations.
        seed: Decides the order of batches, and dropout.
        checkpoints: Where it saves its state; None: nowhere.
        judge: Called on training batches in place of the model, of which it makes another outcome;
            None: the model itself.
        earlier: Where a training that ended earlier has its state, from which this one may begin.

    Raises:
        Diverged: the loss is no finite number.
        Interrupted: SIGTERM came; a checkpoint was written, and the next call goes on from it.
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
        )
        yield from trainer.run(stop, earlier)
        yield from learned_span_rows(model, task)
        del trainer

"""What a runner is given of one cell, in the cell's own process: `runners.runner.Work`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from lra.composition.compose import build_model, build_task, facts
from lra.composition.run import Run
from lra.sweep.attention_cores import FamilyCores
from lra.sweep.stored_weights import StoredTraining
from lra.sweep.trainings import trainings
from models.backbone.model import Backbone, TaskFacts
from runners.runner import OWN
from runners.training.checkpoint import Checkpoints
from tasks.task import Stretches, Task


class CellWork:
    """One cell of a run; `argument` is what `lra.execution.group` says about it."""

    def __init__(self, run: Run, argument: Mapping[str, Any]) -> None:
        self._run, self._trainings, self._stored = run, argument["trainings"], argument["stored"]
        self.model, self.seed, self.backbone = run.model, run.seed, run.backbone
        self.task, self.optim, self.hardware = run.task, run.optim, run.hardware
        self.length, self.mode = int(argument["length"]), str(argument["mode"])
        folder = argument["checkpoints"]
        self.checkpoints = Path(folder) if folder else None

    @classmethod
    def planned(cls, run: Run, columns: Mapping[str, Any]) -> "CellWork":
        """Return a cell that is looked at and not run: it has no files."""
        files: dict[str, Any] = {"trainings": {}, "stored": None, "checkpoints": None}
        return cls(run, {**columns, **files})

    def facts(self, max_length: int | None = None) -> TaskFacts:
        """Return what the task tells the model; with a length, what a cost measurement does."""
        return facts(self._run, max_length)

    def build(
        self, *, max_length: int | None = None, name: str = OWN, facts: TaskFacts | None = None
    ) -> Backbone:
        """Build the run's model, or the reference `name` in the same backbone."""
        return build_model(self._run, max_length=max_length, name=name, own_facts=facts)

    def trained(self, name: str = OWN) -> Backbone:
        """Return a model that the sweep trained before, with its weights."""
        model = build_model(trainings(self._run)[name])
        model.load_state_dict(dict(self.weights(name)))
        return model

    def stored(self) -> Backbone:
        """Return the model of a completed training that the run names, with its weights."""
        training = StoredTraining(**self._stored)
        model = build_model(training.run())
        model.load_state_dict(Checkpoints(Path(training.checkpoints)).weights())
        return model

    def stored_task(self) -> str:
        """Return the name of the task that it was trained on."""
        return StoredTraining(**self._stored).run().task.spec.name

    def weights(self, name: str = OWN) -> Mapping[str, Tensor]:
        """Return its weights alone."""
        return Checkpoints(Path(self._trainings[name])).weights()

    def source_task(self, name: str) -> Task:
        """Return the task that it was trained on."""
        return trainings(self._run)[name].task

    def stretched(self, options: Mapping[str, object]) -> Stretches:
        """Return the run's task with other options, its data prepared."""
        config = self._run.config
        task = build_task({**config["task"], **options}, list(config["plugins"]))
        task.prepare()
        return cast(Stretches, task)

    def cores(self) -> FamilyCores:
        """Return the attention functions of the run's family by themselves."""
        return FamilyCores(self._run, self.length)

"""What a runner works with in the process of one cell: implements `lra.runners.runner.Work`."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args, get_origin

import torch
from torch import Tensor, nn

from lra.composition.binding import schema
from lra.composition.compose import (
    build_model,
    build_task,
    facts,
    group_file,
    locate,
    mixer_factory,
)
from lra.composition.run import Run
from lra.models.backbone.choices import CAUSAL_HEADS
from lra.models.backbone.model import Backbone, TaskFacts
from lra.models.backbone.seeding import derive, draw_on_cpu
from lra.models.idle import idle_in
from lra.models.mixer import SCORED, Site, Unsupported
from lra.models.multi_head import Core
from lra.runners.measures.approximation import Approximation
from lra.runners.measures.attention.cores import core_of
from lra.runners.runner import OWN
from lra.runners.training.checkpoint import Checkpoints
from lra.sweep.identity import is_reference
from lra.sweep.stored_weights import StoredTraining
from lra.sweep.trainings import trainings
from lra.tasks.task import Stretches, Task

LENGTH = "length"
"""As the value of an option of `target`: the number of tokens is put in its place."""


class FamilyCores:
    """Makes the cores of a family at one length: `lra.runners.measures.approximation.Cores`."""

    def __init__(self, run: Run, length: int) -> None:
        """Take the family of a run. Raises Unsupported for several families or scored positions."""
        node = run.config["model"]
        if "mixer" not in node or node.get("layers"):
            raise Unsupported(
                f"{run.model} is not a single family: wanted a model with one mixer, and "
                "model.layers empty"
            )
        if run.backbone.positions in SCORED:
            raise Unsupported(
                f"model.backbone.positions={run.backbone.positions} adds a term to the attention "
                "scores, but this runner compares approximations without such a term: choose "
                "learned, sinusoidal, rotary or none"
            )
        self.config = cast(Approximation, run.runner)
        self.run, self.length, self.node = run, length, dict(node["mixer"])
        self.option = self.config.budget_option(run.model)
        self.causal = facts(run, length).head in CAUSAL_HEADS

    def approximation(self, budget: int, *, draw: int, layer: int) -> Core:
        """Return the core of the run's family with this budget, as a layer draws it."""
        return self._core({**self.node, **self._as_lists({self.option: budget})}, layer, draw)

    def exact(self, *, layer: int) -> Core:
        """Return the core that the family approximates.

        It is the family itself with the options of the runner's `target`, or softmax attention.
        """
        target = self.config.target
        if not target:
            return self._core(group_file("model", "softmax")["mixer"], layer)
        options = {k: self.length if v == LENGTH else v for k, v in target.items()}
        return self._core({**self.node, **self._as_lists(options)}, layer)

    def reference(self) -> Core:
        """Return exact attention through SDPA."""
        return self._core(group_file("model", "sdpa")["mixer"], 0)

    def labels(self) -> dict[str, str]:
        """Return labels of the rows: the options in the runner's `named` that this family has."""
        options = self.run.mixer_options
        return {
            f"mixer.{name}": str(options[name]).lower()
            for name in self.config.named
            if name in options
        }

    def _as_lists(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options; the value of one that takes a list, one per layer, becomes [value]."""
        family = locate(str(self.node["class_path"]), list(self.run.config["plugins"]))
        lists = {
            name
            for name, (kind, _) in schema(family).items()
            if list in (get_origin(kind), *map(get_origin, get_args(kind)))
        }
        return {
            key: [value] if key in lists and not isinstance(value, list) else value
            for key, value in options.items()
        }

    def _core(self, node: dict[str, Any], layer: int, draw: int = 0) -> Core:
        """Build a mixer, and return the core inside it.

        Options of `node` that have no effect together with the others get their defaults.
        The random numbers depend only on the run's seed, on `layer` and on `draw`. A family that
        draws its features one after the other has the same first features at every budget.
        """
        plugins = list(self.run.config["plugins"])
        factory, _ = mixer_factory(node, plugins)
        backbone = self.run.backbone
        generator = torch.Generator("cpu").manual_seed(
            derive(self.run.seed, f"core {layer}, draw {draw}")
        )
        site = Site(
            width=backbone.width,
            heads=backbone.heads,
            own_head_width=backbone.head_width,
            max_length=self.length,
            causal=self.causal,
            layer=layer,
            depth=backbone.depth,
            generator=generator,
        )
        family = locate(str(node["class_path"]), plugins)
        if unread := idle_in(family, site, cast(partial[Any], factory).keywords):
            factory, _ = mixer_factory({k: v for k, v in node.items() if k not in unread}, plugins)
        with draw_on_cpu():
            return core_of(cast(nn.Module, factory(site)))


class CellWork:
    """One cell of a run; `argument` is the description that `lra.execution.executor` sends."""

    def __init__(self, run: Run, argument: Mapping[str, Any]) -> None:
        """Take a run, and what `lra.execution.executor` sends about one of its cells."""
        self.run, self._trainings, self._stored = run, argument["trainings"], argument["stored"]
        self.model, self.seed, self.backbone = run.model, run.seed, run.backbone
        self.task, self.optim, self.hardware = run.task, run.optim, run.hardware
        self.length, self.mode = int(argument["length"]), str(argument["mode"])
        folder = argument["checkpoints"]
        self.checkpoints = Path(folder) if folder else None

    @classmethod
    def planned(cls, run: Run, columns: Mapping[str, Any]) -> "CellWork":
        """Return the work of a cell that is only counted or built, without files of its own."""
        files: dict[str, Any] = {"trainings": {}, "stored": None, "checkpoints": None}
        return cls(run, {**columns, **files})

    def facts(self, max_length: int | None = None) -> TaskFacts:
        """Return the task's facts for the model, or those of a cost measurement at a length."""
        return facts(self.run, max_length)

    def build(
        self, *, max_length: int | None = None, name: str = OWN, facts: TaskFacts | None = None
    ) -> Backbone:
        """Build the run's model, or the reference `name` in the same backbone."""
        return build_model(self.run, max_length=max_length, name=name, given_facts=facts)

    def is_reference(self, name: str) -> bool:
        """Tell whether the run's model is the reference `name`."""
        return is_reference(self.run, name)

    def trained(self, name: str = OWN) -> Backbone:
        """Return the model of the training `name`, which the sweep ran before, with its weights."""
        model = build_model(trainings(self.run)[name])
        model.load_state_dict(dict(self.weights(name)))
        return model

    def stored(self) -> Backbone:
        """Return the model of a completed training that the run names, with its weights."""
        training = StoredTraining(**self._stored)
        model = build_model(training.run())
        model.load_state_dict(Checkpoints(Path(training.checkpoints)).weights())
        return model

    def stored_task(self) -> str:
        """Return the name of the task that the model of `stored` was trained on."""
        return StoredTraining(**self._stored).run().task.spec.name

    def weights(self, name: str = OWN) -> Mapping[str, Tensor]:
        """Return only the weights of the training `name`."""
        return Checkpoints(Path(self._trainings[name])).weights()

    def source_task(self, name: str) -> Task:
        """Return the task that the training `name` was on."""
        return trainings(self.run)[name].task

    def stretched(self, options: Mapping[str, object]) -> Stretches:
        """Return the run's task with other options, its data prepared."""
        config = self.run.config
        task = build_task({**config["task"], **options}, list(config["plugins"]))
        task.prepare()
        return cast(Stretches, task)

    def cores(self) -> FamilyCores:
        """Return the attention functions of the run's family by themselves."""
        return FamilyCores(self.run, self.length)

"""The trainings that a runner starts from: ordinary cells of `train`, which a sweep runs first.

A runner that needs trained weights has a method `starts_from()` on its options, which returns names
of models: "model" for the run's own, or a family in the same backbone. Their cells are those of
`runner=train` with its default options: a model that was trained already is not trained again.
If the runner has an option `pretraining`, its values replace options of these trainings, by group.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from lra.composition.binding import plain
from lra.composition.compose import bundled_family, facts, group_file, typed
from lra.composition.run import Run
from lra.models.backbone.assembly import idle_for_task
from lra.models.backbone.config import BackboneConfig
from lra.models.idle import defaults
from lra.runners.records import Cell, Memo, Status
from lra.runners.runner import OWN
from lra.runners.store import Store
from lra.runners.training.checkpoint import Checkpoints
from lra.tasks.task import Task


def trainings(
    run: Run, tasks: dict[str, Task] | None = None, memo: Memo | None = None
) -> dict[str, Run]:
    """Return the runs of `train` that `run` starts from, by the name its runner gives them.

    Args:
        run: The run.
        tasks: Tasks that were built before: see `lra.composition.compose.typed`.
        memo: What the runs of the sweep share; None: shared with no other run.
    """
    runs, memo = {}, memo or Memo()
    for name in run.runner.starts_from():
        train = memo.of("runner train", (), partial(group_file, "runner", "train"))
        config: dict[str, Any] = {**run.config, "runner": train}
        for group, options in run.runner.training_changes().items():
            config[group] = memo.of(
                ("changed", group),
                (config[group], run.runner),
                partial(_join, config[group], options),
            )
        if name not in (OWN, run.model):
            backbone = run.config["model"]["backbone"]
            config["model"] = memo.of(
                ("reference", name), (backbone,), partial(_make_reference, name, backbone)
            )
        runs[name] = _without_idle(typed(config, tasks, memo), tasks, memo)
    return runs


def _join(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group with the values that `pretraining` gives some of them."""
    return {**options, **changes}


def _make_reference(name: str, backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model configuration of the reference `name` in the backbone of a run."""
    family = bundled_family(name, "runner.references")
    return {
        "name": name,
        "layers": [],
        "backbone": backbone,
        **{key: family[key] for key in ("mixer", "stack", "about") if key in family},
    }


def _without_idle(run: Run, tasks: dict[str, Task] | None, memo: Memo) -> Run:
    """Return a training whose unused backbone options have their defaults.

    The options are copied from the run that starts from this training. That run may have another
    objective, so that its options may have no effect in the training.
    """
    usual = defaults(BackboneConfig)
    changed = {name: usual[name] for name in idle_for_task(run.backbone, facts(run))}
    if not changed:
        return run
    model = run.config["model"]
    fitting = memo.of(
        ("fitting", *changed),
        (model,),
        lambda: {**model, "backbone": {**model["backbone"], **plain(changed)}},
    )
    return typed({**run.config, "model": fitting}, tasks, memo)


def words_of(name: str, run: Run, words: tuple[str, ...], parent: Run) -> tuple[str, ...]:
    """Return the arguments of the command that runs a training by itself.

    Args:
        name: Its name in the result of `trainings`.
        run: The training.
        words: The arguments of the run that starts from it.
        parent: The run that starts from it.
    """
    changed = {
        f"{group}.{key}": json.dumps(value) if not isinstance(value, str) else value
        for group, options in parent.runner.training_changes().items()
        for key, value in options.items()
    }

    backbone, parent_backbone = (owner.config["model"]["backbone"] for owner in (run, parent))
    changed |= {
        f"model.backbone.{key}": value if isinstance(value, str) else json.dumps(value)
        for key, value in backbone.items()
        if value != parent_backbone.get(key)
    }

    def applies(word: str) -> bool:
        """Return whether an argument of the parent also holds for the training."""
        key = word.split("=", 1)[0].lstrip("+")
        if key.split(".")[0] == "runner" or key in changed:
            return False
        # A reference has neither the parent's model nor the options of its mixer.
        return name == OWN or (key != "model" and not key.startswith("model.mixer"))

    model_word = () if name == OWN else (f"model={run.model}",)
    added = (f"{key}={value}" for key, value in changed.items())
    return (*filter(applies, words), *model_word, *added, "runner=train")


def missing_weights(cell: Cell, store: Store) -> str | None:
    """Return why a training has no stored weights; None if it has them."""
    if Checkpoints(store.checkpoint_folder(cell)).finished():
        return None
    failed: list[Mapping[str, Any]] = [
        row for row in store.rows_of(cell) if row["status"] != Status.ok
    ]
    if failed:
        status, reason = failed[0]["status"], failed[0]["reason"]
        return f"this training ended with the status {status}: {reason}"
    return "this training saved no weights"

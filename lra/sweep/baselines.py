"""The baselines of a sweep's tasks: ordinary cells of `certify`, which its trainings bring along.

A sweep has each of them once, for all models, seeds and training options. Its key is the same as
under `runner=certify`, so that baselines that are stored already are skipped.
"""

from collections.abc import Sequence
from typing import Any

from lra.composition.compose import group_file, typed
from lra.composition.python_words import word
from lra.composition.run import Run
from lra.sweep.cells import Lookups, plan
from lra.sweep.sweep import PlannedCell

RUNNER = "certify"
OF_SEVERAL = ("processes", "sharded")
"""Options of the hardware that always have their defaults in a cell of one process."""


def baselines(run: Run, split: str, words: Sequence[str], lookups: Lookups) -> PlannedCell:
    """Return the planned cell that computes the baselines of a training's task.

    Args:
        run: The training.
        split: The split of the data on which the baselines are scored.
        words: The arguments that the training was composed of.
        lookups: What the runs of the sweep share.
    """
    train_options = run.config["runner"]
    runner: dict[str, Any] = group_file("runner", RUNNER)
    runner |= {"split": split, "retry": train_options["retry"]}
    if train_options["timeout_s"] is not None:
        runner["timeout_s"] = min(train_options["timeout_s"], runner["timeout_s"])
    hardware = {k: v for k, v in run.config["hardware"].items() if k not in OF_SEVERAL}
    config = {**run.config, "runner": runner, "hardware": hardware}
    if "trial" in (labels := config.get("about") or {}):  # a training may be a trial's
        config["about"] = {key: value for key, value in labels.items() if key != "trial"}
    certify_words = (
        *(argument for argument in words if not _sets_training(argument)),
        f"runner={RUNNER}",
    )
    # `test` is the default of `certify`, so that the command need not name it.
    certify_words += () if split == "test" else (word("runner.split", split),)
    certified = typed(config, lookups.tasks, lookups.memo)
    (cell,) = plan(certified, certify_words, lookups)
    return PlannedCell(cell, certified, beside=True)  # the command does not name this cell


def _sets_training(argument: str) -> bool:
    """Return whether an argument sets an option that a cell of baselines lacks."""
    group, _, name = argument.partition("=")[0].lstrip("+~").partition(".")
    return group == "runner" or (group == "hardware" and name in OF_SEVERAL)

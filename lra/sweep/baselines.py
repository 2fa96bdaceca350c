"""The baselines of a sweep's tasks: ordinary cells of `certify`, which its trainings bring along.

Each stands once, whatever models, seeds and options of training there are beside it, under the key
that it has by itself: what was computed before, or by `runner=certify`, is not computed again.
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
"""Options of the hardware that a cell of one process has at their defaults."""


def baselines(run: Run, split: str, words: Sequence[str], lookups: Lookups) -> PlannedCell:
    """Return the cell of the baselines beside a training.

    Args:
        run: The training.
        split: Whose baselines are computed.
        words: Of the command line, for the training.
        lookups: Of the sweep.
    """
    given = run.config["runner"]
    runner: dict[str, Any] = group_file("runner", RUNNER)
    runner |= {"split": split, "retry": given["retry"]}
    if given["timeout_s"] is not None:
        runner["timeout_s"] = min(given["timeout_s"], runner["timeout_s"])
    hardware = {k: v for k, v in run.config["hardware"].items() if k not in OF_SEVERAL}
    config = {**run.config, "runner": runner, "hardware": hardware}
    if "trial" in (about := config.get("about") or {}):  # of which a training is part
        config["about"] = {key: value for key, value in about.items() if key != "trial"}
    named = (*(each for each in words if not _is_of_training(each)), f"runner={RUNNER}")
    named += () if split == "test" else (word("runner.split", split),)
    certified = typed(config, lookups.tasks, lookups.memo)
    (cell,) = plan(certified, named, lookups)
    return PlannedCell(cell, certified, beside=True)


def _is_of_training(each: str) -> bool:
    group, _, name = each.partition("=")[0].lstrip("+~").partition(".")
    return group == "runner" or (group == "hardware" and name in OF_SEVERAL)

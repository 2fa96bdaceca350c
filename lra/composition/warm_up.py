"""Shorten a warm-up that is longer than the training.

The warm-up of a preset or a default is meant for a certain number of steps. If a run has fewer
steps than its warm-up, the warm-up is cut to all steps of the run, and a note says so. A warm-up
that an argument sets stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lra.composition.own_options import TABLES

PATHS = ("optim", "runner.pretraining.optim")
FREE = ("rsqrt", "inverse_sqrt")
"""Schedules whose warm-up is never cut: the learning rate of each step depends on its length, and
some published trainings end within it."""


def by_hand(option: str, words: Sequence[str]) -> bool:
    """Return whether an argument of the command sets an option, directly or inside a mapping."""
    path, _, name = option.rpartition(".")
    for word in words:
        key, _, value = word.lstrip("+").partition("=")  # an argument ~key sets no value
        in_table = key.partition(".")[0] in TABLES
        if key == option or (in_table and key.endswith(f".{option}")):
            return True
        may_contain = in_table or f"{path}.".startswith(f"{key}.")
        if may_contain and value.startswith("{") and name in value:
            return True
    return False


def cut_warm_up(
    optim: Any, above: Mapping[str, Any], words: Sequence[str], path: str
) -> int | None:
    """Return the steps to which a warm-up is cut, or None if it stays as it is.

    Args:
        optim: The options at `path`, resolved; a value that is no mapping is ignored.
        above: The `optim` of the run, for options that are not at `path`.
        words: The arguments of the command.
        path: One of `PATHS`.
    """
    if not isinstance(optim, Mapping):
        return None
    everything = {**above, **optim}
    steps, warmup = everything.get("steps"), everything.get("warmup_steps")
    if type(steps) is not int or type(warmup) is not int or not 1 <= steps < warmup:
        return None
    if everything.get("schedule") in FREE or by_hand(f"{path}.warmup_steps", words):
        return None
    return steps


def sentence(path: str, warmup: int, steps: int, protocol: Any) -> str:
    """Return a note that a warm-up of `warmup` steps was cut to `steps`.

    `protocol`: the name of the protocol that set it; None or "none" if another file did.
    """
    files = "a file" if protocol in (None, "none") else f"+protocol={protocol}"
    return (
        f"{path}.warmup_steps is {steps:,} instead of {warmup:,} as in {files}, because the run "
        f"has only {steps:,} steps; set {path}.warmup_steps=N for another number"
    )

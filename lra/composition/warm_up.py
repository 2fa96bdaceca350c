"""Shortens a warm-up that is longer than the training.

The warm-up of a preset or a default is meant for a certain number of steps. If a run has fewer
steps than its warm-up, the warm-up is cut to all steps of the run, and a note says so. A warm-up
that an argument sets stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lra.composition.own_options import TABLES

PATHS = ("optim", "runner.pretraining.optim")
FREE = ("rsqrt", "inverse_sqrt")
"""Schedules whose rate depends on the length of the warm-up also where a training ends within it,
as some published ones do: it is never cut."""


def by_hand(option: str, words: Sequence[str]) -> bool:
    """Return whether an argument of the command sets an option, directly or inside a mapping."""
    path, _, name = option.rpartition(".")
    for word in words:
        key, _, value = word.lstrip("+").partition("=")  # ~key names no value
        in_table = key.partition(".")[0] in TABLES
        if key == option or (in_table and key.endswith(f".{option}")):
            return True
        around = in_table or f"{path}.".startswith(f"{key}.")
        if around and value.startswith("{") and name in value:
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
    """Return what to say of a warm-up that was cut."""
    files = "its file" if protocol in (None, "none") else f"its files (protocol {protocol})"
    return (
        f"{path}.warmup_steps={steps} instead of the {warmup:,} of {files}, because the run has "
        f"{steps:,} steps; set {path}.warmup_steps=N for another number"
    )

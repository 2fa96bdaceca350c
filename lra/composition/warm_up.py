"""A warm-up that no word names ends with the steps.

Presets and defaults are meant for their own number of steps. Where a run has fewer than the warm-up
that a file gives, it warms up to its last step, and says so; one named by hand stays as it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lra.composition.own_options import TABLES

PATHS = ("optim", "runner.pretraining.optim")
FREE = ("rsqrt", "inverse_sqrt")
"""Schedules whose rate follows from a warm-up of any length: published ones end within it."""


def by_hand(option: str, words: Sequence[str]) -> bool:
    """Return whether a word of the command line names an option, itself or in a mapping."""
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
    """Return the warm-up to put in the place of one that is longer than the steps.

    Args:
        optim: The options at `path`, resolved; anything.
        above: Those of the run, which hold where `path` is silent.
        words: Those of the command line.
        path: Of `PATHS`.

    Returns:
        None where the warm-up stays as it is.
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

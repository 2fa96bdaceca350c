"""The names under which dashboards get numbers: axes, metrics, and the configuration to group by.

The one list of them: what writes runs, live or afterwards, to W&B or to TensorBoard, and what draws
panels over them, take the names from here.
"""

from collections.abc import Mapping
from typing import Any, Final

# ------------------------------------------------------------------------------------- the axes

LENGTH_AXIS: Final = "sequence_length"
"""Tokens: what a run of cost, one for each curve, is drawn over."""
STEP_AXIS: Final = "optimiser_step"
"""Steps taken: what a run of training is drawn over."""

# ---------------------------------------------------------------- while a training is under way

LOSS: Final = "train/loss"
"""Nats: the mean over the steps since the one before, as it is stored."""
STEP_LOSS: Final = "train/step_loss"
"""Nats: of the last step, at moments when somebody watches."""
LEARNING_RATE: Final = "train/learning_rate"
GRADIENT_NORM: Final = "train/gradient_norm"
"""Euclidean, of all gradients together, before they are clipped."""
EXAMPLES_PER_S: Final = "train/examples_per_s"
TOKENS_PER_S: Final = "train/tokens_per_s"
"""Tokens that the model reads, padding included."""
STEP_TIME_S: Final = "train/step_time_s"
DATA_WAIT_SHARE: Final = "train/data_wait_share"
"""Of the time of the steps so far, from 0 to 1."""
TIME_LEFT_S: Final = "train/time_left_s"
PROCESS_BYTES: Final = "memory/process_bytes"
"""Resident memory of the cell's process, now."""
GPU_BYTES: Final = "memory/gpu_bytes"
"""Allocated by tensors on the GPU, now."""
TRAINING: Final = (
    LOSS, STEP_LOSS, LEARNING_RATE, GRADIENT_NORM, EXAMPLES_PER_S, TOKENS_PER_S, STEP_TIME_S,
    DATA_WAIT_SHARE, TIME_LEFT_S, PROCESS_BYTES, GPU_BYTES,
)  # fmt: skip

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    LENGTH_AXIS: ("speed/*", "memory/*"),
    STEP_AXIS: ("train/*", "quality/*"),
}
"""Each axis with the metrics that are drawn over it."""
TRAINING_AXES: Final[Mapping[str, tuple[str, ...]]] = {
    LENGTH_AXIS: AXES[LENGTH_AXIS],
    STEP_AXIS: (*AXES[STEP_AXIS], PROCESS_BYTES, GPU_BYTES),
}
"""The same of a run of training: a metric named in full goes before a pattern."""

# -------------------------------------------------------------------------------- stored results


def score(split: str, metric: str) -> str:
    """Return the key of a score, as in `quality/validation_accuracy` or `quality/test_loss`.

    Those of the validation split have a value at every validation; those of the test split are in
    a run's summary.
    """
    return f"quality/{split}_{metric}"


def trained(metric: str) -> str:
    """Return the key of what a training took, in its run's summary: `train/train_step_time`."""
    return f"train/{metric}"


def searched(metric: str) -> str:
    """Return the key of what a search found, over its trials: `search/trial_score`."""
    return f"search/{metric}"


SPEEDUP: Final = "speedup"
"""In place of a metric: 1 / `time_ratio`, how many times as fast as the reference a model is."""


def cost(mode: str, metric: str, reference: str = "") -> str:
    """Return the key of a cost at one length, as in `speed/step_time_ratio_against_sdpa`.

    Args:
        mode: of the measurement: step, forward and others.
        metric: a name of `lra.runners.metrics`: time, time_ratio, peak_tensor_bytes and others; or
            `SPEEDUP`.
        reference: the model that a ratio is against.
    """
    against = f"_against_{reference}" if reference else ""
    section = "memory" if "bytes" in metric else "speed"
    return f"{section}/{mode}_{metric}{against}"


def at_length(length: int, key: str) -> str:
    """Return the key, in a run's summary, of a cost at one length: `at_512/speed_step_time`."""
    return f"at_{length}/{key.replace('/', '_')}"


# ---------------------------------------------------- the configuration of a run: flat, one level

STATUS: Final = "status"
"""In the summary: `complete`, `incomplete`, or while and where it was written live, how a cell
ended: a status of rows, `running` or `stopped`."""
REASON: Final = "reason"
"""In the summary: why a run is not complete."""

CONFIGURATION: Final = (
    "sweep", "model", "family", "kind", "task", "task_version", "source", "protocol", "scale",
    "seed", LENGTH_AXIS, "longest_length", "runner", "mode", "causal", "hardware", "device",
    "precision", "threads", "cells",
)  # fmt: skip
"""Keys that every run has at the top of its configuration; numbers are numbers.

`model` is the name in reports, options that tell it from others included, `family` the registered
name, `kind` the family's group. `sequence_length` is that of the task, or None where a run holds
several lengths; `longest_length` the longest in it. A run of cost has `mode` None where it holds
several. `cells` are the keys of its cells in the result store.
"""
SEPARATOR: Final = "__"
"""In place of the dots of an option: W&B reads a dot in a key as the name of a nested one."""
_UNSAID = frozenset({
    "about", "called", "deviations", "for_model", "for_runner", "for_task", "hydra", "logger",
    "plugins", "published_models", "report", "results", "sweep",
})  # fmt: skip
"""Entries that describe, steer or say where; no option of a measurement."""
_SHORT_KEYS = frozenset({
    ("model", "name"), ("task", "name"), ("runner", "name"), ("hardware", "name"),
    ("runner", "tuned"),
})  # fmt: skip
"""Options that `CONFIGURATION` or `SEARCHED` has already."""
SEARCHED: Final = ("search", "study", "trial", "rung")
"""Keys of the configuration of a training that belongs to a search: its name, the numbers of study
and trial, and the share of the steps after which it ended; 1 of whole trainings."""


def option(*path: str) -> str:
    """Return the key of an option: of `optim.peak_learning_rate`, `optim__peak_learning_rate`."""
    return SEPARATOR.join(path)


def options(config: Mapping[str, Any], *above: str) -> dict[str, Any]:
    """Return the options of a composed configuration on one level, under keys as of `option`.

    Lists stay lists and numbers numbers; what `CONFIGURATION` has already is left out.
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        path = (*above, str(name))
        listed = path in _SHORT_KEYS or (not above and name in CONFIGURATION)
        if name in _UNSAID or (listed and not isinstance(value, Mapping)):
            continue
        if isinstance(value, Mapping):
            flat |= options(value, *path)
        else:
            flat[option(*path)] = value
    return flat

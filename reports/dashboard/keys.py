"""The names under which dashboards get numbers: axes, metrics, and the configuration to group by.

The one list of them, for what writes runs and for what draws panels over them.
"""

from collections.abc import Mapping
from typing import Any, Final

LENGTH_AXIS: Final = "sequence_length"
"""Tokens: what a run of cost, one for each curve, is drawn over."""
STEP_AXIS: Final = "optimiser_step"
"""Steps taken: what a run of training is drawn over."""

LOSS: Final = "train/loss"
"""Nats: the mean over the steps since the one before, as it is stored."""
TRAINING: Final[Mapping[str, str]] = {
    "loss": "train/step_loss",  # nats, of the last step
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",  # Euclidean, of all gradients, before they are clipped
    "examples_per_s": "train/examples_per_s",
    "tokens_per_s": "train/tokens_per_s",  # that the model reads, padding included
    "step_time_s": "train/step_time_s",
    "data_wait_share": "train/data_wait_share",  # of the time of the steps so far, 0 to 1
    "left_s": "train/time_left_s",
    "process_bytes": "memory/process_bytes",  # resident memory of the cell's process, now
    "gpu_bytes": "memory/gpu_bytes",  # allocated by tensors on the GPU, now
}
"""The numbers of a step at moments when somebody watches: by the fields of
`lra.runners.isolation.progress.Progress` and of its `TrainingStep`."""

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    LENGTH_AXIS: ("speed/*", "memory/*"),
    STEP_AXIS: ("train/*", "quality/*"),
}
"""Each axis with the metrics that are drawn over it."""
TRAINING_AXES: Final[Mapping[str, tuple[str, ...]]] = {
    LENGTH_AXIS: AXES[LENGTH_AXIS],
    STEP_AXIS: (*AXES[STEP_AXIS], TRAINING["process_bytes"], TRAINING["gpu_bytes"]),
}
"""The same of a run of training: a metric named in full goes before a pattern."""

STATUS: Final = "status"
"""In the summary: `complete` or `incomplete` or, where a cell's process ended early, its status, or
`stopped`."""
REASON: Final = "reason"
"""In the summary: why a run is not complete."""
SPEEDUP: Final = "speedup"
"""In place of a metric: 1 / `time_ratio`, how many times as fast as the reference a model is."""


def score(split: str, metric: str) -> str:
    """Return the key of a score, as in `quality/validation_accuracy` or `quality/test_loss`."""
    return f"quality/{split}_{metric}"


def training_key(metric: str) -> str:
    """Return the key of what a training took, in its run's summary: `train/train_step_time`."""
    return f"train/{metric}"


def search_key(metric: str) -> str:
    """Return the key of what a search found, over its trials: `search/trial_score`."""
    return f"search/{metric}"


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


CONFIGURATION: Final = (
    "sweep", "model", "family", "kind", "task", "task_version", "source", "protocol", "scale",
    "seed", LENGTH_AXIS, "longest_length", "runner", "mode", "causal", "hardware", "device",
    "precision", "threads", "cells",
)  # fmt: skip
"""Keys that every run has at the top of its configuration, beside its options.

`model` is the name in reports, `family` the registered name, `kind` the family's group. What
differs within a run (`sequence_length`, `mode` of a curve) is None; `longest_length` is the longest
in it. `cells` are the keys of its cells in the result store.
"""
SEARCHED: Final = ("search", "study", "trial", "rung")
"""Keys of the configuration of a training that belongs to a search: its name, the numbers of study
and trial, and the share of the steps after which it ended; 1 of whole trainings."""
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


def options(config: Mapping[str, Any], *above: str) -> dict[str, Any]:
    """Return the options of a composed configuration on one level, but for `CONFIGURATION`.

    `optim.peak_learning_rate` is `optim__peak_learning_rate`: W&B reads a dot in a key as the name
    of a nested one.
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
            flat["__".join(path)] = value
    return flat

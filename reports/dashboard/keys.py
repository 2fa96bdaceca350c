"""The names of axes, metrics and configuration entries in dashboards.

Code that writes runs and code that makes panels use these names.
"""

from collections.abc import Mapping
from typing import Any, Final

LENGTH_AXIS: Final = "sequence_length"
"""The horizontal axis of costs, in tokens."""
STEP_AXIS: Final = "optimiser_step"
"""The horizontal axis of trainings, in optimiser steps."""

LOSS: Final = "train/loss"
"""The stored training loss in nats: the mean over the steps since the last stored value."""
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
"""Keys of the live numbers of a training, by field of `lra.runners.isolation.progress.Progress` or
its `TrainingStep`."""

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    LENGTH_AXIS: ("speed/*", "memory/*"),
    STEP_AXIS: ("train/*", "quality/*"),
}
"""The metrics of each horizontal axis, for curves of cost."""
TRAINING_AXES: Final[Mapping[str, tuple[str, ...]]] = {
    LENGTH_AXIS: AXES[LENGTH_AXIS],
    STEP_AXIS: (*AXES[STEP_AXIS], TRAINING["process_bytes"], TRAINING["gpu_bytes"]),
}
"""The metrics of each horizontal axis, for trainings; a full name precedes a pattern."""

STATUS: Final = "status"
"""The key of the status in the summary: `complete`, `incomplete`, `stopped`, or the status of a run
whose process ended early."""
REASON: Final = "reason"
"""The key of the reason in the summary of an incomplete run."""
SPEEDUP: Final = "speedup"
"""The name of 1 / `time_ratio`: how many times as fast as the reference a model is."""


def score(split: str, metric: str) -> str:
    """Return the key of a score, as in `quality/validation_accuracy` or `quality/test_loss`."""
    return f"quality/{split}_{metric}"


def training_key(metric: str) -> str:
    """Return the key of a cost of a training in the summary, as in `train/train_step_time`."""
    return f"train/{metric}"


def search_key(metric: str) -> str:
    """Return the key of a result of a search, as in `search/trial_score`."""
    return f"search/{metric}"


def cost(mode: str, metric: str, reference: str = "") -> str:
    """Return the key of a cost at one length, as in `speed/step_time_ratio_against_sdpa`.

    Args:
        mode: the mode of the measurement, for example step or forward.
        metric: a name of `lra.runners.metrics`, for example time or time_ratio; or `SPEEDUP`.
        reference: the reference of a ratio; "" for other metrics.
    """
    against = f"_against_{reference}" if reference else ""
    section = "memory" if "bytes" in metric else "speed"
    return f"{section}/{mode}_{metric}{against}"


def at_length(length: int, key: str) -> str:
    """Return the key of a cost at one length in the summary, as in `at_512/speed_step_time`."""
    return f"at_{length}/{key.replace('/', '_')}"


CONFIGURATION: Final = (
    "sweep", "model", "family", "kind", "task", "task_version", "source", "protocol", "scale",
    "seed", LENGTH_AXIS, "longest_length", "runner", "mode", "causal", "hardware", "device",
    "precision", "threads", "cells",
)  # fmt: skip
"""Keys that every run has at the top level of its configuration, in addition to its options.

`model` is the name in reports, `family` is the registered name, and `kind` is the group of the
family. Values that differ within a run (`sequence_length` and `mode` of a curve) are None, and
`longest_length` is its longest length. `cells` are the keys of its runs of lra.
"""
SEARCHED: Final = ("search", "study", "trial", "rung")
"""Keys of the configuration of a training from a search: the name of the search, the numbers of
study and trial, and the fraction of the steps after which it ended (1 for full trainings)."""
_UNSAID = frozenset({
    "about", "called", "deviations", "for_model", "for_runner", "for_task", "hydra", "logger",
    "plugins", "published_models", "report", "results", "sweep",
})  # fmt: skip
"""Entries of a configuration that are not options of a measurement."""
_SHORT_KEYS = frozenset({
    ("model", "name"), ("task", "name"), ("runner", "name"), ("hardware", "name"),
    ("runner", "tuned"),
})  # fmt: skip
"""Options that are already in `CONFIGURATION` or `SEARCHED`."""


def options(config: Mapping[str, Any], *above: str) -> dict[str, Any]:
    """Return the options of a composed configuration as a flat mapping, without `CONFIGURATION`.

    `optim.peak_learning_rate` becomes `optim__peak_learning_rate`, because W&B treats a dot as the
    beginning of a nested key.
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        path = (*above, str(name))
        has_key = path in _SHORT_KEYS or (not above and name in CONFIGURATION)
        if name in _UNSAID or (has_key and not isinstance(value, Mapping)):
            continue
        if isinstance(value, Mapping):
            flat |= options(value, *path)
        else:
            flat["__".join(path)] = value
    return flat

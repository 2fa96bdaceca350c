"""Stop a training at a target on validation, and count the steps until it was reached."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lra.models.mixer import Unsupported
from lra.runners.metrics import METRICS
from lra.runners.records import Measurement, Status
from lra.tasks.task import Derives, Task

STEPS = "steps_to_target"


def target_words(stop_at: Mapping[str, float]) -> str:
    """Return a target in words, for example `accuracy at least 0.99`."""
    side = {True: "at least", False: "at most"}
    return " and ".join(
        f"{metric} {side[bool(METRICS[metric].higher_is_better)]} {threshold:g}"
        for metric, threshold in stop_at.items()
    )


def check_target(stop_at: Mapping[str, float] | None, evaluate_every_steps: int) -> None:
    """Raise ValueError for a target that no validation can reach, or that nothing compares."""
    if stop_at is None:
        return
    if not stop_at:
        raise ValueError(
            "stop_at: got {}; wanted a metric and its threshold, for example {accuracy: 0.99}, or "
            "null"
        )
    for name, threshold in stop_at.items():
        metric = METRICS.get(name)
        if metric is None or metric.higher_is_better is None:
            raise ValueError(
                f"stop_at: got the metric {name!r}; wanted a score of the task, for example "
                "{accuracy: 0.99} or {loss: 0.1}"
            )
        if not math.isfinite(threshold) or not metric.least <= threshold <= metric.most:
            raise ValueError(
                f"stop_at: got {name}={threshold:g}; {name} is from {metric.least:g} to "
                f"{metric.most:g}, so choose a threshold in this range"
            )
    if not evaluate_every_steps:
        raise ValueError(
            f"stop_at={dict(stop_at)} is compared with validations during training, but "
            "evaluate_every_steps is 0; type runner.evaluate_every_steps=N, or set stop_at=null"
        )


def check_scores(stop_at: Mapping[str, float] | None, task: Task, *, prepared: bool) -> None:
    """Check that a task has the scores of a target.

    Args:
        stop_at: Thresholds by metric; None: there is no target.
        task: The task.
        prepared: Whether its data are on this machine. If not, scores that the task derives from
            its loss are unknown and pass.

    Raises:
        Unsupported: The task lacks a score.
    """
    names = set(task.spec.measured)
    if isinstance(task, Derives):
        if not prepared:
            return
        names |= task.derived_metrics("validation", 1.0).keys()
    for name in stop_at or ():
        if name not in names:
            raise Unsupported(
                f"runner.stop_at has the metric {name}, but task={task.spec.name} has only "
                f"{', '.join(sorted(names))} on validation: choose one of these"
            )


def reached_step(rows: Iterable[Mapping[str, Any]], stop_at: Mapping[str, float]) -> int | None:
    """Return the first step whose validation reached all thresholds; None if there is none.

    Args:
        rows: The fields of all rows of the training so far.
        stop_at: Thresholds by metric.
    """
    steps = _validations(rows)
    return next((s for s, scores in sorted(steps.items()) if _meets(scores, stop_at)), None)


def target_row(
    rows: Iterable[Mapping[str, Any]], stop_at: Mapping[str, float], step: int
) -> Measurement:
    """Return the row with the steps to the target, or why a training of `step` steps has none."""
    rows, words = [*rows], target_words(stop_at)
    labels = {"threshold": words}
    reached = reached_step(rows, stop_at)
    if reached is not None:
        return Measurement(metric=STEPS, value=float(reached), labels=labels)
    steps = _validations(rows).values()
    best = (
        f"{name} {(max if METRICS[name].higher_is_better else min)(s[name] for s in steps):.4g}"
        for name in stop_at
        if steps
    )
    reason = (
        f"validation did not reach {words} within {step:,} steps (best: "
        f"{', '.join(best) or 'not validated'}); raise optim.steps, or change runner.stop_at"
    )
    return Measurement(metric=STEPS, status=Status.skipped, reason=reason, labels=labels)


def _validations(rows: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """Return the scores of each validation during training, by step and metric."""
    steps: dict[int, dict[str, float]] = {}
    for row in rows:
        if row["labels"].get("split") == "validation":
            steps.setdefault(row["step"], {})[row["metric"]] = row["value"]
    return steps


def _meets(scores: Mapping[str, float], stop_at: Mapping[str, float]) -> bool:
    """Return whether scores reach all thresholds."""
    return all(
        scores[name] >= threshold if METRICS[name].higher_is_better else scores[name] <= threshold
        for name, threshold in stop_at.items()
    )

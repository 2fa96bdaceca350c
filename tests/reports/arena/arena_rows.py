"""Planted rows of runs under a protocol: scores of the six tasks, and training steps on text."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.reports.conftest import accuracy, baseline, failed, row, timing

DATA = {
    "listops": ("generated", 2000), "text": ("imdb", 1000), "retrieval": ("aan", 4000),
    "image": ("cifar10", 1024), "pathfinder": ("generated", 1024), "pathx": ("generated", 16384),
}  # fmt: skip
SCORES = {
    "listops": 0.36, "text": 0.64, "retrieval": 0.57, "image": 0.42, "pathfinder": 0.71,
    "pathx": 0.80,
}  # fmt: skip
KINDS = {
    "exact attention": ["softmax", "sdpa"], "kernels": ["linear", "performer"],
    "windows": ["local"], "low rank": ["linformer"],
}  # fmt: skip


def labels(protocol: str = "lra_code", **further: str) -> dict[str, str]:
    return ({"protocol": protocol} if protocol else {}) | further


def place(task: str, length: int | None = None) -> dict[str, Any]:
    source, usual = DATA[task]
    return {"task": task, "source": source, "length": length or usual}


def score(
    model: str,
    task: str,
    value: float,
    *,
    seed: int = 0,
    length: int | None = None,
    parameters: float | None = 1e6,
    marks: Mapping[str, str] | None = None,
    **columns: Any,
) -> list[dict[str, Any]]:
    """A trained model: its accuracy over 2,000 examples and its size."""
    own = labels() if marks is None else dict(marks)
    where = place(task, length) | columns
    cell = f"{model}-{task}-{where['length']}-{seed}-{'-'.join(own.values())}"
    found = [accuracy(model, seed, value, labels=own, cell=cell, **where)]
    if parameters:
        size = {"model": model, "seed": seed, "labels": own, "cell": cell}
        found.append(row("parameters", parameters, **size, **where))
    return found


def refused(model: str, task: str, status: str, reason: str) -> dict[str, Any]:
    return failed("accuracy", model, status, reason, labels=labels(), **place(task))


def whole(
    model: str, add: float = 0.0, tasks: Iterable[str] = SCORES, **options: Any
) -> list[dict[str, Any]]:
    """One model at several tasks."""
    return [r for task in tasks for r in score(model, task, SCORES[task] + add, **options)]


def majority(task: str, value: float) -> dict[str, Any]:
    cell = f"majority-{task}-{value}"
    return baseline("majority", value, "Always the commonest class.", cell=cell, **place(task))


def steps(
    model: str, length: int, seconds: float, *, exact: float | None = None,
    marks: Mapping[str, str] | None = None, batch: int = 32, **options: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """Training steps on text; `exact` is the time of softmax attention beside."""
    found = timing(
        model, length, seconds, batch=batch, references={"softmax": exact} if exact else None,
        task="text", source="imdb", **options,
    )  # fmt: skip
    own = labels() if marks is None else dict(marks)
    return [each | {"labels": {**own, **each["labels"]}} for each in found]

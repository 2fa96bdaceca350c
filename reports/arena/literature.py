"""Published results of the Long Range Arena, by protocol and model, from `published.yaml`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from lra.reports.arena.rules import EXACT, TASKS

FAIL = "FAIL"
"""Printed in place of a number if a paper reports a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScore:
    """A score that a paper reports."""

    percent: float | None
    """The score in percent; None if the paper reports a failure."""
    source: str
    remark: str

    @property
    def text(self) -> str:
        """The score as printed: a number, or FAIL."""
        return FAIL if self.percent is None else f"{self.percent:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCost:
    """Time and memory of a model in the paper, with entries for 1K, 2K, 3K and 4K bytes."""

    steps_per_second: Sequence[float | None]
    ratio: Sequence[float | None]
    """The speed divided by that of exact attention."""
    gigabytes: Sequence[float | None]


@cache
def _registry() -> Mapping[str, Any]:
    """Return the content of `published.yaml`, whose keys are `scores` and `costs`."""
    text = resources.files("lra.reports.arena").joinpath("published.yaml").read_text("utf-8")
    registry: Mapping[str, Any] = yaml.safe_load(text)
    return registry


def published_tables() -> list[str]:
    """Return the names of the tables of published scores."""
    return [*_registry()["scores"]]


def published_accuracies(table: str) -> dict[str, dict[str, float | None]]:
    """Return the accuracies of a published table, from 0 to 1, by model and task.

    Averages are omitted, and so are tasks without any number. A failure is None.
    """
    entry = _registry()["scores"][table]
    lines = {model: dict(zip(entry["columns"], line, strict=True))
             for model, line in entry["models"].items()}  # fmt: skip
    numbers = {
        model: {task: value / 100 if isinstance(value, (int, float)) else None
                for task, value in line.items() if task in TASKS}
        for model, line in lines.items()
    }  # fmt: skip
    tasks = {t for line in numbers.values() for t, value in line.items() if value is not None}
    return {m: {t: v for t, v in line.items() if t in tasks} for m, line in numbers.items()}


def published_scores(protocol: str, family: str) -> dict[str, PublishedScore]:
    """Return the scores of a model in the source of a protocol, by task or name of an average."""
    return {
        column: score for column, protocols, score in _scores_of(family) if protocol in protocols
    }


def printed_scores(family: str, column: str) -> list[PublishedScore]:
    """Return the scores of a model in all sources; `column` is a task or the name of an average."""
    return [score for name, _, score in _scores_of(family) if name == column]


def _scores_of(family: str) -> Iterator[tuple[str, Sequence[str], PublishedScore]]:
    """Yield (column, protocols of the table, score) for each published score of a model."""
    for table in _registry()["scores"].values():
        line = table["models"].get(_published_name(family), [])
        for column, value in zip(table["columns"] if line else (), line, strict=True):
            if value is not None:
                percent = None if value == FAIL else float(value)
                score = PublishedScore(
                    percent=percent, source=table["source"], remark=table["remark"]
                )
                yield column, table["protocols"], score


def published_cost(family: str) -> PublishedCost | None:
    """Return the costs of a model in the paper's table 2; None if the table lacks the model."""
    line = _registry()["costs"]["models"].get(_published_name(family))
    return None if line is None else PublishedCost(**line)


def published_bubble(
    protocol: str, family: str, rule: str
) -> tuple[PublishedScore, PublishedCost] | None:
    """Return the average score and the costs of a model from one paper; None if one is missing.

    Args:
        protocol: a protocol; its source must be the paper that has the costs.
        family: the family of the model.
        rule: the name of the average.
    """
    score, cost = published_scores(protocol, family).get(rule), published_cost(family)
    same_paper = protocol in _registry()["costs"]["protocols"]
    return (score, cost) if score and cost and same_paper else None


def cost_source() -> tuple[str, str]:
    """Return the source of the published costs, and a remark about their hardware."""
    costs = _registry()["costs"]
    return str(costs["source"]), str(costs["remark"])


def _published_name(family: str) -> str:
    """Return the name of a family in the registry, which has one entry for exact attention."""
    return EXACT[0] if family in EXACT else family

"""Published results of the Long Range Arena, by protocol and model, from `published.yaml`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from lra.reports.arena.rules import EXACT

FAIL = "FAIL"
"""Stands where a paper reports a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScore:
    """One number of a paper."""

    percent: float | None
    """None: printed as a failure."""
    source: str
    remark: str

    @property
    def text(self) -> str:
        """As printed."""
        return FAIL if self.percent is None else f"{self.percent:.2f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCost:
    """What one model cost in the paper; one entry for each of 1K, 2K, 3K, 4K bytes."""

    steps_per_second: Sequence[float | None]
    ratio: Sequence[float | None]
    """Speed over that of exact attention."""
    gigabytes: Sequence[float | None]


@cache
def _registry() -> Mapping[str, Any]:
    text = resources.files("lra.reports.arena").joinpath("published.yaml").read_text("utf-8")
    registry: Mapping[str, Any] = yaml.safe_load(text)
    return registry


def published_scores(protocol: str, family: str) -> dict[str, PublishedScore]:
    """Return what the source of a protocol reports of a model, by task and name of average."""
    return {
        column: score for column, protocols, score in _scores_of(family) if protocol in protocols
    }


def printed_scores(family: str, column: str) -> list[PublishedScore]:
    """Return what every source reports of a model: of a task, or under the name of an average."""
    return [score for printed, _, score in _scores_of(family) if printed == column]


def _scores_of(family: str) -> Iterator[tuple[str, Sequence[str], PublishedScore]]:
    """Yield the columns of a model's lines, the protocols of their tables, and the numbers."""
    for table in _registry()["scores"].values():
        line = table["models"].get(_printed(family), [])
        for column, value in zip(table["columns"] if line else (), line, strict=True):
            if value is not None:
                percent = None if value == FAIL else float(value)
                score = PublishedScore(
                    percent=percent, source=table["source"], remark=table["remark"]
                )
                yield column, table["protocols"], score


def published_cost(family: str) -> PublishedCost | None:
    """Return what the paper's table 2 has of a model; None where it has nothing."""
    line = _registry()["costs"]["models"].get(_printed(family))
    return None if line is None else PublishedCost(**line)


def published_bubble(
    protocol: str, family: str, rule: str
) -> tuple[PublishedScore, PublishedCost] | None:
    """Return a published average, and what the same model cost in the same paper.

    Args:
        protocol: whose source the paper is, or None is returned.
        family: the model.
        rule: name of the average.
    """
    score, cost = published_scores(protocol, family).get(rule), published_cost(family)
    same = protocol in _registry()["costs"]["protocols"]
    return (score, cost) if score and cost and same else None


def cost_source() -> tuple[str, str]:
    """Return where the published costs are from, and what they were measured on."""
    costs = _registry()["costs"]
    return str(costs["source"]), str(costs["remark"])


def _printed(family: str) -> str:
    """Return the name that stands for a family: both programs of exact attention are one model."""
    return EXACT[0] if family in EXACT else family

"""The numbers of the paper's figure 3: speed, average score and memory of every model."""

from collections.abc import Mapping, Sequence

import pandas as pd

from lra.reports.arena.costs import GIGABYTE, best_reference
from lra.reports.arena.literature import published_bubble
from lra.reports.arena.rules import BATCH, EXACT, LENGTHS, place
from lra.reports.arena.scores import ArenaScores
from lra.reports.rows import CostPoint, Value
from lra.reports.style import current_style

RULE = "five_tasks"
"""The average that is drawn, as in the paper."""
COLUMNS = (
    "model", "family", "kind", "length", "examples_per_second", "speed_ratio", "reference", "score",
    "average", "memory_bytes", "disturbed", "published", "reason",
)  # fmt: skip
PUBLISHED_LENGTHS = tuple(dict.fromkeys(LENGTHS.values()))
"""Titles of the lengths of published costs, in the order of their numbers."""
OTHER_KIND = "other models"


def bubble_data(
    scores: ArenaScores, points: Sequence[CostPoint], groups: Mapping[str, Sequence[str]]
) -> pd.DataFrame:
    """Return a line for each model with its numbers, or the reason why one of them is missing.

    Lines with published numbers of the same models follow; their column `published` has the source.

    Args:
        scores: the scores of runs under one protocol and scale.
        points: costs of training steps of these models on one machine; the longest length is used.
        groups: families by kind.
    """
    length = max(p.length for p in points if p.time.ok)
    costs = {p.model: p for p in points if p.length == length}
    rows = scores.runs.rows
    families = dict(zip(rows["line"], rows["family"], strict=True))
    scored = {line.name for line in scores.lines}
    reference = best_reference(points)
    kinds = {family: kind for kind, members in groups.items() for family in members}
    rule = scores.averages.get(RULE)
    records = []
    for name in sorted({*scored, *costs}, key=lambda n: (place(families[n]), n)):
        family, point = families[name], costs.get(name)
        record = dict.fromkeys(COLUMNS) | {"model": name, "family": family, "length": length}
        record |= {"kind": kinds.get(family, OTHER_KIND), "average": RULE, "reason": ""}
        reasons = []
        if rule is None:
            reasons.append("there is no average, because some of its tasks were not run")
        elif name not in scored:
            reasons.append("this model has no scores under the protocol")
        elif (average := scores.average(name, rule)).value is None:
            reasons += average.notes
        else:
            record["score"] = average.value
        record |= _cost_columns(point, reference, reasons)
        records.append(record | {"reason": "; ".join(reasons)})
    # The paper has one exact attention for both of ours.
    in_paper = dict.fromkeys(EXACT[0] if r["family"] in EXACT else r["family"] for r in records)
    for family in in_paper:
        published = _published_columns(scores.runs.protocol, str(family), length)
        if published is not None:
            kind = kinds.get(str(family), OTHER_KIND)
            records.append(dict.fromkeys(COLUMNS) | published | {"kind": kind, "length": length})
    return pd.DataFrame(records, columns=list(COLUMNS))


def _published_columns(protocol: str, family: str, length: int) -> dict[str, object] | None:
    """Return a paper's numbers of a model at a length; None if the paper lacks one of them."""
    bubble = published_bubble(protocol, family, RULE)
    if bubble is None or length not in LENGTHS:
        return None
    average, cost = bubble
    index = PUBLISHED_LENGTHS.index(LENGTHS[length])
    steps, gigabytes = cost.steps_per_second[index], cost.gigabytes[index]
    if average.percent is None or steps is None or gigabytes is None:
        return None
    return {
        "model": f"{current_style().family_name(family)}, published",
        "family": family,
        "average": RULE,
        "examples_per_second": BATCH * steps,
        "speed_ratio": cost.ratio[index],
        "reference": EXACT[0],
        "score": average.percent / 100,
        "memory_bytes": gigabytes * GIGABYTE,
        "published": average.source,
        "reason": "",
    }


def _cost_columns(point: CostPoint | None, reference: str, reasons: list[str]) -> dict[str, object]:
    """Return the columns of speed and memory; append to `reasons` why a number is missing."""
    if point is None:
        reasons.append("speed and memory were not measured at this length")
        return {}
    if point.time.value is None:
        reasons.append(f"the speed is unknown: {point.time.reason}")
        return {}
    numbers: dict[str, object] = {"disturbed": point.time.disturbed or None}
    numbers["examples_per_second"] = (point.batch_size or BATCH) / point.time.value
    ratio: Value | None = point.time_ratio.get(reference)
    if ratio is not None and ratio.value:
        numbers |= {"speed_ratio": 1 / ratio.value, "reference": reference}
    if point.memory.value is None:
        reasons.append(f"the memory is unknown: {point.memory.reason}")
    else:
        numbers["memory_bytes"] = point.memory.value
    return numbers

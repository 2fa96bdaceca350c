"""What a run is called, and its flat configuration: of its cells, and of nothing else."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lra.reports.dashboard.keys import LENGTH_AXIS, SEARCHED, options
from lra.runners.records import baseline_of, canonical

BASELINES = "baselines"
"""What the run of all baselines of a sweep is called."""
_NO_MODEL = "baseline"
"""In the model column of a cell that scores baselines."""
_PLAIN = ("train", "scaling", "certify")
"""Runners that a name need not mention: training, the curve of cost, a task's baselines."""
_TAG_LIMIT = 64
"""Characters that the server takes in a tag."""
_COLUMNS = ("task", "task_version", "source", "seed", "runner", "mode", "causal", "hardware",
            "device", "precision", "threads")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Of one run."""

    name: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]


def is_baseline(model: object) -> bool:
    """Tell whether a model column stands for baselines, which are no model."""
    return model == _NO_MODEL or baseline_of(str(model)) is not None


def describe(
    columns: Sequence[Mapping[str, Any]],
    configs: Sequence[Mapping[str, Any]],
    *,
    model: str,
    sweep: str,
    cells: Sequence[str],
    apart: str | None = None,
) -> Description:
    """Describe the run of some cells, in the same words whatever else a sweep holds.

    Args:
        columns: of each cell, those of `lra.runners.records.CELL_COLUMNS`, plain JSON.
        configs: of those whose composed configuration is known.
        model: display name, `BASELINES` for baselines.
        sweep: the group.
        cells: keys.
        apart: words that tell the run from the others of its sweep, behind its name, which
            then holds the family alone; None: the display name is enough.
    """
    same = {name for name in _COLUMNS if all(each[name] == columns[0][name] for each in columns)}
    shared = {name: columns[0][name] if name in same else None for name in _COLUMNS}
    lengths = sorted({int(each["length"]) for each in columns})
    tasks = list(dict.fromkeys(str(each["task"]) for each in columns))
    task = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    kind, family = str(columns[0]["runner"]), str(columns[0]["model"])
    if model == BASELINES:
        family = BASELINES
    parts = [model if apart is None else family, task]
    if shared["seed"] is not None:
        parts.append(f"s{shared['seed']}")
    if kind not in _PLAIN:
        parts.append(kind)
    if len(lengths) > 1 and len(tasks) == 1:
        parts.append(f"{lengths[0]}-{lengths[-1]}")
    agreed = _shared(configs)
    device = str(columns[0]["device"])
    return Description(
        name="/".join(parts) + (apart or ""),
        job_type=kind,
        tags=[tag[:_TAG_LIMIT] for tag in dict.fromkeys([model, task, device, sweep])],
        config={
            "sweep": sweep,
            "model": model,
            "family": family,
            "kind": (agreed.get("model", {}).get("about") or {}).get("kind"),
            "protocol": agreed.get("protocol"),
            "scale": agreed.get("scale"),
            LENGTH_AXIS: lengths[0] if len(lengths) == 1 else None,
            "longest_length": lengths[-1],
            **shared,
            "cells": list(cells),
            **_searched(agreed),
            **options(agreed),
        },
    )


def _searched(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return which trial of which search a training is, or has the options of."""
    tuned = (config.get("runner") or {}).get("tuned")
    place = (config.get("about") or {}).get("trial") or f"{tuned}/"
    if (found := re.fullmatch(r"(.+)/(\d+)/(\d+)/([\d.]*)", str(place))) is None:
        return {}
    search, study, trial, rung = found.groups()
    return dict(zip(SEARCHED, (search, int(study), int(trial), float(rung or 1)), strict=True))


def _shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all configurations of a run agree on: its cells differ in length and mode."""
    first, *others = configs or [{}]
    shared = {}
    for key, value in first.items():
        inner = [each[key] for each in configs if isinstance(each.get(key), Mapping)]
        if len(inner) == len(configs):
            shared[key] = _shared(inner)
        elif all(key in each and canonical(each[key]) == canonical(value) for each in others):
            shared[key] = value
    return shared

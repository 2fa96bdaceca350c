"""Which run a cell belongs to, what that is called, and its flat configuration.

Of the cells in it, and of nothing else. A sweep imports this before its first cell: no pandas.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lra.reports.dashboard.keys import LENGTH_AXIS, SEARCHED, options
from lra.runners.records import baseline_of, canonical, digest

BASELINES = "baselines"
"""What the run of all baselines of a sweep is called."""
_NO_MODEL = "baseline"
"""In the model column of a cell that scores baselines."""
_PLAIN = ("train", "scaling", "certify")
"""Runners that a name need not mention: training, the curve of cost, a task's baselines."""
_ALONG = ("length", "mode")
"""What differs along one curve."""
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


def group(cell: str, identity: Mapping[str, Any], *, baseline: bool, curve: bool) -> str:
    """Return what is the same for the cells of one run.

    Args:
        cell: key.
        identity: of the cell.
        baseline: whether it scores baselines.
        curve: whether it is timed at a length.
    """
    if baseline:
        return BASELINES
    if curve:
        return digest({k: v for k, v in identity.items() if k not in _ALONG})
    return cell


def describe(
    columns: Sequence[Mapping[str, Any]],
    configs: Sequence[Mapping[str, Any]],
    *,
    model: str,
    sweep: str,
    cells: Sequence[str],
    title_suffix: str | None = None,
) -> Description:
    """Describe the run of some cells, in the same words whatever else a sweep holds.

    Args:
        columns: of each cell, those of `lra.runners.records.CELL_COLUMNS`, plain JSON.
        configs: of those whose composed configuration is known.
        model: display name, `BASELINES` for baselines.
        sweep: the group.
        cells: keys.
        title_suffix: words that tell the run from the others of its sweep, behind its name, which
            then holds the family alone; None: the display name is enough.
    """
    shared = {name: _common([each.get(name) for each in columns]) for name in _COLUMNS}
    lengths = sorted({int(each["length"]) for each in columns if each.get("length") is not None})
    tasks = list(dict.fromkeys(str(each["task"]) for each in columns))
    task = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    kind, family = str(columns[0]["runner"]), str(columns[0]["model"])
    if model == BASELINES:
        family = BASELINES
    parts = [model if title_suffix is None else family, task]
    if shared["seed"] is not None:
        parts.append(f"s{shared['seed']}")
    if kind not in _PLAIN:
        parts.append(kind)
    if len(lengths) > 1 and len(tasks) == 1:
        parts.append(f"{lengths[0]}-{lengths[-1]}")
    agreed = _shared(configs)
    chosen = agreed.get("model")
    about = chosen.get("about") if isinstance(chosen, Mapping) else None
    device = str(columns[0]["device"])
    return Description(
        name="/".join(parts) + (title_suffix or ""),
        job_type=kind,
        tags=[tag[:_TAG_LIMIT] for tag in dict.fromkeys([model, task, device, sweep])],
        config={
            "sweep": sweep,
            "model": model,
            "family": family,
            "kind": about.get("kind") if isinstance(about, Mapping) else None,
            "protocol": agreed.get("protocol"),
            "scale": agreed.get("scale"),
            LENGTH_AXIS: lengths[0] if len(lengths) == 1 else None,
            "longest_length": lengths[-1] if lengths else None,
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
    values = (search, int(study), int(trial), float(rung or 1))
    return dict(zip(SEARCHED, values, strict=True))


def _common(values: Sequence[Any]) -> Any:
    """Return the value that all have; None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _shared(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all configurations of a run agree on: its cells differ in length and mode."""
    if not configs:
        return {}
    first, shared = configs[0], {}
    for key, value in first.items():
        others = [c.get(key) for c in configs[1:]]
        if isinstance(value, Mapping):
            if all(isinstance(o, Mapping) for o in others):
                shared[key] = _shared([value, *(o for o in others if isinstance(o, Mapping))])
        elif all(key in c and canonical(c[key]) == canonical(value) for c in configs[1:]):
            shared[key] = value
    return shared

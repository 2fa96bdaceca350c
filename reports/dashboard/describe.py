"""Describe a run of a dashboard: its name, tags and flat configuration."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lra.reports.dashboard.keys import LENGTH_AXIS, SEARCHED, options
from lra.runners.records import baseline_of, canonical

BASELINES = "baselines"
"""The name of the run of all baselines of a sweep."""
_NO_MODEL = "baseline"
"""The column `model` of a run that scores baselines."""
_PLAIN = ("train", "scaling", "certify")
"""Runners that the name of a run does not mention."""
_TAG_LIMIT = 64
"""The most characters of a tag on the server."""
_COLUMNS = ("task", "task_version", "source", "seed", "runner", "mode", "causal", "hardware",
            "device", "precision", "threads")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The name, type, tags and configuration of one run of a dashboard."""

    name: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]


def is_baseline(model: object) -> bool:
    """Return whether a value of the column `model` stands for baselines."""
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
    """Return the description of a run of a dashboard, which shows one or several runs of lra.

    Args:
        columns: for each run of lra, its columns `lra.runners.records.CELL_COLUMNS` as plain JSON.
        configs: the composed configurations that are known.
        model: the display name of the model; `BASELINES` for baselines.
        sweep: the name of the group.
        cells: the keys of the runs of lra.
        apart: words that distinguish the run from others of its sweep. They follow the name, which
            then has only the family. None if the display name is enough.
    """
    first = columns[0]
    same = {name for name in _COLUMNS if all(row[name] == first[name] for row in columns)}
    shared = {name: first[name] if name in same else None for name in _COLUMNS}
    lengths = sorted({int(row["length"]) for row in columns})
    tasks = list(dict.fromkeys(str(row["task"]) for row in columns))
    task = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks"
    kind, family = str(first["runner"]), str(first["model"])
    if model == BASELINES:
        family = BASELINES
    parts = [model if apart is None else family, task]
    if shared["seed"] is not None:
        parts.append(f"s{shared['seed']}")
    if kind not in _PLAIN:
        parts.append(kind)
    if len(lengths) > 1 and len(tasks) == 1:
        parts.append(f"{lengths[0]}-{lengths[-1]}")
    agreed = _common_entries(configs)
    device = str(first["device"])
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
            **_search_entries(agreed),
            **options(agreed),
        },
    )


def _search_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return search, study, trial and rung of a trial, or of the trial with the same options.

    They are stored as a text, `SEARCH/STUDY/TRIAL/RUNG`; {} if the training is from no search.
    """
    # A final training stores the trial whose options it has, without a rung.
    tuned = (config.get("runner") or {}).get("tuned")
    text = (config.get("about") or {}).get("trial") or f"{tuned}/"
    if (match := re.fullmatch(r"(.+)/(\d+)/(\d+)/([\d.]*)", str(text))) is None:
        return {}
    search, study, trial, rung = match.groups()
    return dict(zip(SEARCHED, (search, int(study), int(trial), float(rung or 1)), strict=True))


def _common_entries(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are the same in all configurations, also in nested ones."""
    first, *others = configs or [{}]
    common = {}
    for key, value in first.items():
        nested = [config[key] for config in configs if isinstance(config.get(key), Mapping)]
        if len(nested) == len(configs):
            common[key] = _common_entries(nested)
        elif all(key in other and canonical(other[key]) == canonical(value) for other in others):
            common[key] = value
    return common

"""Counts that ship with lra: the passes of presets whose counting takes half a minute.

`preset_counts.json` holds them by `key_of`. They are used to announce the time of a sweep, while
`lra plan` counts again. `tests/benchmarks/preset_counts.py` makes the file.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lra.composition import layer_list
from lra.composition.binding import plain
from lra.composition.class_path import locate
from lra.composition.run import Run
from lra.models.backbone.model import TaskFacts
from lra.runners.records import digest
from lra.runners.runner import OWN, Passes
from lra.sweep.identity import decisive

FILE = Path(__file__).with_suffix(".json")


@cache
def shipped_counts() -> Mapping[str, Any]:
    """Return the shipped counts by `key_of`: the numbers of a `lra.sweep.costs.PassCost`."""
    counts: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return counts


def key_of(run: Run, passes: Passes, task_facts: TaskFacts) -> str:
    """Return a digest of everything that decides the count of a pass.

    Options at their defaults do not enter it, so that a new option changes no key.
    """
    facts = decisive(type(task_facts), plain(task_facts))
    decisive_facts: dict[str, Any] = {
        "model": run.model if passes.name == OWN else passes.name,
        "backbone": decisive(type(run.backbone), plain(run.backbone)),
        "facts": {k: sorted(v) if isinstance(v, frozenset) else v for k, v in facts.items()},
        "passes": [passes.rows, passes.length, passes.step, passes.micro_rows, passes.measured],
        "memory": run.task.spec.memory,
        "device": str(run.hardware.device),
        "precision": str(run.hardware.precision),
        "direction": str(run.runner.facing),
    }
    if passes.read is not None:
        decisive_facts["read"] = passes.read
    if passes.asked is not None:
        decisive_facts["asked"] = passes.asked
    if passes.name == OWN:
        options = dict(run.mixer_options)
        layers = {name: options.pop(name) for name in layer_list.PARTS if name in options}
        family = locate(str(options["class_path"]), list(run.config["plugins"]))
        decisive_facts["mixer"] = {
            "class_path": options["class_path"], **decisive(family, options), **layers
        }  # fmt: skip
    if passes.step:
        averaged = run.optim.ema_decay is not None or run.optim.average_after is not None
        decisive_facts["optim"] = [str(run.optim.optimiser), averaged]
    return digest(decisive_facts)

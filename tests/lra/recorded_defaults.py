"""What every default is, by version: `python tests/lra/recorded_defaults.py` writes it anew.

A key holds only the options that differ from their defaults, so that a default which moves without
its version would give old rows to a new question.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lra.composition.binding import defaults
from lra.composition.catalogue import names
from lra.composition.class_path import locate
from lra.composition.compose import build_task, group_file
from lra.composition.runner_class import our_runners
from lra.tasks.data.stored_task import MISSING
from lra.tasks.errors import NotPrepared

RECORD = Path(__file__).with_suffix(".json")


def today() -> dict[str, dict[str, Any]]:
    """Return the version and the defaults of all that has some."""
    from lra.models.backbone.model import BackboneConfig
    from lra.runners.training.optim import OptimConfig

    found = {}
    for name in names("model"):
        node = group_file("model", name)
        family = locate(str((node.get("mixer") or node["stack"])["class_path"]))
        version = getattr(family, "version", 1)
        found[f"model {name}"] = {"version": version, "defaults": dict(defaults(family))}
    for name in names("task"):
        task = locate(str(group_file("task", name)["class_path"]))
        found[f"task {name}"] = {**_facts(name, task), "defaults": dict(defaults(task))}
    configs = {"backbone": BackboneConfig, "optim": OptimConfig}
    configs |= {f"runner {name}": kind for name, kind in our_runners().items()}
    for name, config in configs.items():
        version = getattr(config, "version", 1)
        found[name] = {"version": version, "defaults": dict(defaults(config))}
    return found


def _facts(name: str, task: type) -> dict[str, Any]:
    """Return the version of a task and, where it needs no file of the user's, its data."""
    for more in ({}, {"source": "sample"}):
        try:
            spec = build_task({**group_file("task", name), **more}).spec
        except (ValueError, NotPrepared):
            continue
        if spec.data_hash == MISSING:
            continue
        return {"version": spec.version, "data": [*more.values(), spec.data_hash]}
    return {"version": vars(sys.modules[task.__module__])["VERSION"]}


def moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each default that moved while its version stayed."""
    for name, old in before.items():
        new = after.get(name)
        if new is None or new["version"] != old["version"]:
            continue
        for option, value in old["defaults"].items():  # one that is gone is in no key from now on
            if new["defaults"].get(option, value) != value:
                yield f"{name}: {option} was {value!r} and is {new['defaults'][option]!r}"
        if new.get("data") != old.get("data"):
            yield f"{name}: its default options give other data"


if __name__ == "__main__":
    found = today()
    if RECORD.is_file() and (faults := list(moved(json.loads(RECORD.read_text()), found))):
        raise SystemExit("raise the version first:\n" + "\n".join(faults))
    RECORD.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")

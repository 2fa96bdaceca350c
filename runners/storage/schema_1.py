"""Reads what schema 1 wrote of cells and rows as this version writes it.

There an identity held every option and the Python path of each class, and its hash was the key.
Options of `approximation` that are one model's were mappings of all models. A baseline was called a
floor.
"""

from collections.abc import Mapping
from typing import Any

from lra.runners.records import BASELINE

_PATH = "class_path"
_INTERVALS = frozenset({"log_every_steps", "checkpoint_every_s"})
_FLOOR = "floor/"


def describe_cell(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a cell of schema 1, spelled out as in `lra.runners.records.Cell`."""
    result = dict(identity)
    if isinstance(runner := result.get("runner"), Mapping):
        result["runner"] = _of_model(
            {k: v for k, v in runner.items() if k not in _INTERVALS}, result.get("model")
        )
    if isinstance(task := result.get("task"), Mapping):
        result["task"] = {k: _without_path(v) if k == "options" else v for k, v in task.items()}
    if isinstance(mixer := result.get("mixer"), Mapping):
        result["mixer"] = _family(mixer)
        if isinstance(others := mixer.get("others"), Mapping):
            result["mixer"]["others"] = {name: _family(options) for name, options in others.items()}
        if result.get("device") == "cpu" and "machine" not in result:
            result.setdefault("threads", 1)
    return result


def model(columns: Mapping[str, Any]) -> str:
    """Return the model column of a row or a cell: baselines under today's name."""
    name = str(columns["model"])
    if name == "floor" and columns["runner"] == "certify":
        return BASELINE.removesuffix("/")
    return BASELINE + name.removeprefix(_FLOOR) if name.startswith(_FLOOR) else name


def _of_model(options: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return a runner's options, of mappings by model what is of one."""
    by_model = [options.get(name) for name in ("budget", "targets", "own_budgets")]
    if not all(isinstance(one, Mapping) for one in by_model):
        return options
    option, target, budgets = (one.get(model) for one in by_model if isinstance(one, Mapping))
    shared = {k: v for k, v in options.items() if k not in ("budget", "targets")}
    return {
        **shared,
        "option": option,
        "target": target or {},
        "budgets": budgets or options.get("budgets"),
        "own_budgets": {},
    }


def _family(options: Any) -> Any:
    return {"version": 1, **_without_path(options)} if isinstance(options, Mapping) else options


def _without_path(options: Any) -> Any:
    if not isinstance(options, Mapping):
        return options
    return {name: value for name, value in options.items() if name != _PATH}

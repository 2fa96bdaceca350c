"""Converts runs and rows of schema 1 to the present schema.

In schema 1 an identity had every option and the Python path of each class, and its hash was the
key. Some options of `approximation` were mappings by model. A baseline was called a floor.
"""

from collections.abc import Mapping
from typing import Any

from lra.runners.records import BASELINE

_PATH = "class_path"
_INTERVALS = frozenset({"log_every_steps", "checkpoint_every_s"})  # now no part of an identity
_FLOOR = "floor/"


def describe_cell(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field `described` of `lra.runners.records.Cell` for an identity of schema 1."""
    result = dict(identity)
    if isinstance(runner := result.get("runner"), Mapping):
        result["runner"] = _select_model(
            {k: v for k, v in runner.items() if k not in _INTERVALS}, result.get("model")
        )
    if isinstance(task := result.get("task"), Mapping):
        result["task"] = {k: _without_path(v) if k == "options" else v for k, v in task.items()}
    if isinstance(mixer := result.get("mixer"), Mapping):
        result["mixer"] = _describe_family(mixer)
        if isinstance(others := mixer.get("others"), Mapping):
            result["mixer"]["others"] = {
                name: _describe_family(options) for name, options in others.items()
            }
        if result.get("device") == "cpu" and "machine" not in result:
            result.setdefault("threads", 1)  # an untimed run on a CPU, which names them now
    return result


def model(columns: Mapping[str, Any]) -> str:
    """Return the model column of a row or run; baselines get their present name."""
    name = str(columns["model"])
    if name == "floor" and columns["runner"] == "certify":
        return BASELINE.removesuffix("/")
    return BASELINE + name.removeprefix(_FLOOR) if name.startswith(_FLOOR) else name


def _select_model(options: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return the options of a runner with the entry of one model in place of mappings by model."""
    by_model = [options.get(name) for name in ("budget", "targets", "own_budgets")]
    if not all(isinstance(mapping, Mapping) for mapping in by_model):
        return options
    option, target, budgets = (each.get(model) for each in by_model if isinstance(each, Mapping))
    shared = {k: v for k, v in options.items() if k not in ("budget", "targets")}
    return {
        **shared,
        "option": option,
        "target": target or {},
        "budgets": budgets or options.get("budgets"),
        "own_budgets": {},
    }


def _describe_family(options: Any) -> Any:
    return {"version": 1, **_without_path(options)} if isinstance(options, Mapping) else options


def _without_path(options: Any) -> Any:
    if not isinstance(options, Mapping):
        return options
    return {name: value for name, value in options.items() if name != _PATH}

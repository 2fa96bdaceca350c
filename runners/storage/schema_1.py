"""Reads what schema 1 wrote of cells and rows as this version writes it.

There an identity held every option and the Python path of each class, and its hash was the key. A
baseline was called a floor.
"""

from collections.abc import Mapping
from typing import Any

from runners.records import BASELINE

_PATH = "class_path"
_INTERVALS = frozenset({"log_every_steps", "checkpoint_every_s"})
_FLOOR = "floor/"


def described(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a cell of schema 1, spelled out as in `runners.records.Cell`."""
    found = dict(identity)
    if isinstance(runner := found.get("runner"), Mapping):
        found["runner"] = {k: v for k, v in runner.items() if k not in _INTERVALS}
    if isinstance(task := found.get("task"), Mapping):
        found["task"] = {k: _without_path(v) if k == "options" else v for k, v in task.items()}
    if isinstance(mixer := found.get("mixer"), Mapping):
        found["mixer"] = _family(mixer)
        if isinstance(others := mixer.get("others"), Mapping):
            found["mixer"]["others"] = {name: _family(options) for name, options in others.items()}
        if found.get("device") == "cpu" and "machine" not in found:
            found.setdefault("threads", 1)
    return found


def model(columns: Mapping[str, Any]) -> str:
    """Return the model column of a row or a cell: baselines under today's name."""
    name = str(columns["model"])
    if name == "floor" and columns["runner"] == "certify":
        return BASELINE.removesuffix("/")
    return BASELINE + name.removeprefix(_FLOOR) if name.startswith(_FLOOR) else name


def _family(options: Any) -> Any:
    return {"version": 1, **_without_path(options)} if isinstance(options, Mapping) else options


def _without_path(options: Any) -> Any:
    if not isinstance(options, Mapping):
        return options
    return {name: value for name, value in options.items() if name != _PATH}

"""Options that a preset or a protocol has for one model, task or runner alone."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from lra.configuration import ConfigError, shown
from lra.listing import names
from lra.suggest import unknown

GROUPS = ("model", "task", "runner")


def own_options(config: Mapping[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Return `config` with what `per_model`, `per_task`, `per_runner` and `for_task` hold for it.

    A preset that sweeps over models, tasks or runners uses the first three to give one of these its
    own options; a protocol says by `for_task` what a task asks of every group. What the command
    line names itself wins.

    Args:
        config: A configuration that was checked. It stays as it is; what does not change is shared.
        words: Those of the command line.
    """
    by_hand = {word.split("=", 1)[0].lstrip("+~") for word in words}
    tree = dict(config)
    for group in GROUPS:
        table: Mapping[str, Any] = tree[f"per_{group}"] or {}
        _check_names(f"per_{group}", table, group, tree)
        name = tree[group]["name"]
        if name in table:
            tree[group] = _refined(tree[group], table[name], group, by_hand)
        tree[f"per_{group}"] = {}
    protocol: Mapping[str, Any] = tree["for_task"] or {}
    _check_names("for_task", protocol, "task", tree)
    name = tree["task"]["name"]
    if protocol and name not in protocol:
        raise ConfigError(
            f"for_task: this protocol has no settings for task={name}; it has them for "
            f"{', '.join(protocol)}"
        )
    settings = protocol.get(name, {})
    if not isinstance(settings, Mapping):
        raise ConfigError(f"for_task.{name}: got {shown(settings)}; wanted a mapping of groups")
    for group, own in settings.items():
        if not isinstance(tree.get(group), Mapping):
            groups = [key for key, node in tree.items() if isinstance(node, Mapping)]
            raise ConfigError(f"for_task.{name}: " + unknown("group", group, groups))
        tree[group] = _refined(tree[group], own, group, by_hand)
    tree["for_task"] = {}
    return tree


def _refined(node: Mapping[str, Any], own: Any, path: str, by_hand: set[str]) -> dict[str, Any]:
    """Return `node` with the options `own`, but for those that the command line names."""
    if not isinstance(own, Mapping):
        raise ConfigError(f"{path}: got {shown(own)}; wanted a mapping of options")
    refined = dict(node)
    for key, value in own.items():
        if f"{path}.{key}" in by_hand:
            continue
        if isinstance(value, Mapping) and isinstance(node.get(key), Mapping):
            refined[key] = _refined(node[key], value, f"{path}.{key}", by_hand)
        else:
            refined[key] = value
    return refined


def _check_names(
    where: str, table: Mapping[str, Any], group: str, config: Mapping[str, Any]
) -> None:
    for name in table:
        if name not in _ours(group) and name != config[group]["name"]:
            raise ConfigError(f"{where}: " + unknown(group, name, _ours(group)))


@lru_cache
def _ours(group: str) -> tuple[str, ...]:
    return tuple(names(group))

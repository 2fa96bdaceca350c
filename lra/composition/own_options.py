"""Options that a file has for one model, task or runner alone.

A preset that sweeps over models, tasks or runners gives one of these its own options by
`per_model`, `per_task` and `per_runner`; a protocol says by `for_task` what a task asks of every
group. Within its file such an entry beats what the file says for all, later tables beat earlier
ones, and a later file beats both: see `lra.composition.loader`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lra.configuration import GROUPS, ConfigError, shown
from lra.suggest import unknown

Tree = dict[str, Any]
TABLES = {"for_task": "task", "per_task": "task", "per_model": "model", "per_runner": "runner"}
"""The group whose choice picks an entry of each table; the last table wins."""
OF_ALL_GROUPS = "for_task"
"""Its entries are mappings of groups; those of the others are options of the one group."""


def own_options(
    layer: Mapping[str, Any],
    chosen: Mapping[str, str],
    known: Callable[[str], Sequence[str]],
    source: str,
) -> Tree:
    """Return what a layer has for the choices that were made, to be merged on top of it.

    Args:
        layer: What one file sets, or the words of the command line; unresolved, plain.
        chosen: The name of the chosen model, task and runner.
        known: Returns the names of a group.
        source: The layer, as messages call it.

    Raises:
        ConfigError: a table names something unknown, holds no mapping, or lacks the task.
    """
    own: Tree = {}
    for table, group in TABLES.items():
        entries = layer.get(table)
        if not entries:
            continue
        where = f"{source}: {table}" if source else table
        if not isinstance(entries, Mapping):
            raise ConfigError(
                f"{where}: got {shown(entries)}; wanted a mapping of options, or {{}}"
            )
        name = chosen.get(group, "")
        for key in entries:
            if key != name and key not in known(group):
                raise ConfigError(f"{where}: " + unknown(group, str(key), known(group)))
        if table == OF_ALL_GROUPS:
            own = merged(own, _of_groups(entries, name, where, source))
        elif name in entries:
            own = merged(own, {group: _mapping(entries[name], f"{where}.{name}")})
    return own


def _of_groups(entries: Mapping[str, Any], name: str, where: str, source: str) -> Tree:
    """Return a protocol's options of every group for the task `name`."""
    if name not in entries:
        raise ConfigError(
            f"{source or where} has no settings for task={name}; it has them for "
            f"{', '.join(map(str, entries))}"
        )
    found = _mapping(entries[name], f"{where}.{name}", "groups")
    for group, options in found.items():
        if group not in GROUPS:
            raise ConfigError(f"{where}.{name}: " + unknown("group", str(group), GROUPS))
        _mapping(options, f"{where}.{name}.{group}")
    return found


def _mapping(value: Any, where: str, of: str = "options") -> Tree:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: got {shown(value)}; wanted a mapping of {of}")
    return value


def without(layer: Tree, path: Sequence[str]) -> Tree:
    """Return a copy without what lies at `path`, or `layer` where nothing does."""
    head, *rest = path
    if head not in layer:
        return layer
    if not rest:
        return {key: value for key, value in layer.items() if key != head}
    below = layer[head]
    return {**layer, head: without(below, rest)} if isinstance(below, dict) else layer


def merged(tree: Tree, layer: Tree) -> Tree:
    """Return one mapping with another on top; parts that only one has are shared."""
    found = dict(tree)
    for key, value in layer.items():
        below = found.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        found[key] = merged(below, value) if both else value  # type: ignore[arg-type]
    return found

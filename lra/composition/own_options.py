"""Read options that a file sets for one task, model or runner only.

A protocol or a preset sets them in the tables `for_task`, `for_model` and `for_runner`. A table has
an entry for each name, with options of any group. An entry may contain further tables, for settings
that belong to a task and a model together:

    for_task:
      image:
        model: {backbone: {width: 128}}
        for_model: {sinkhorn: {optim: {weight_decay: 0.7}}}

Within a file, an entry wins over the file's options for all runs. A nested entry wins over the
entry that contains it. Otherwise `for_model` wins over `for_task`, and `for_runner` over both. A
later file wins over all of these: see `lra.composition.composer`.

A text that depends on the value of an option is a mapping from the values to texts; other values
have no text:

    deviations:
      readout: {model.mixer.kernel: {dplr: "there C (1 - A^n) is learned"}}
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lra.composition.configuration import GROUPS, quote
from lra.errors import ConfigError, unknown

Tree = dict[str, Any]
TABLES = {"for_task": "task", "for_model": "model", "for_runner": "runner"}
"""For each table, the group that decides which entry is used."""
FURTHER_PARTS = ("deviations",)
"""Mappings that an entry may contain in addition to options of groups."""


def matching_options(
    layer: Mapping[str, Any],
    chosen: Mapping[str, str],
    names_of: Callable[[str], Sequence[str]],
    source: str,
) -> Tree:
    """Return the options that the tables of a layer set for the chosen task, model and runner.

    Args:
        layer: The values of one file, or of the arguments of a command, as plain mappings in which
            references are not resolved.
        chosen: The name of the chosen model, task and runner.
        names_of: Returns the names of a group.
        source: The layer, as messages call it.

    Raises:
        ConfigError: A table contains an unknown name or is not a mapping, or the table of a
            protocol lacks the task.
    """
    result: Tree = {}
    level: list[tuple[str, Mapping[str, Any]]] = [(f"{source}: " if source else "", layer)]
    while level:  # first the tables of the layer, then the tables inside their entries, and so on
        level = [
            entry
            for prefix, tables in level
            for entry in _choose_entries(prefix, tables, chosen, names_of)
        ]
        for _, entry in level:
            result = merge_trees(result, {k: v for k, v in entry.items() if k not in TABLES})
    return result


def _choose_entries(
    prefix: str,
    tables: Mapping[str, Any],
    chosen: Mapping[str, str],
    names_of: Callable[[str], Sequence[str]],
) -> Iterator[tuple[str, Tree]]:
    """Yield the chosen entry of each table with its key, after checking the tables.

    Args:
        prefix: The beginning of the keys in messages.
        tables: A mapping that may contain the keys `TABLES`.
        chosen: The name of the chosen model, task and runner.
        names_of: Returns the names of a group.
    """
    for table, group in TABLES.items():
        where, name = f"{prefix}{table}", chosen.get(group, "")
        entries = _require_mapping(tables.get(table) or {}, where, "names, or {}")
        for key in entries:
            if key != name and key not in names_of(group):
                raise ConfigError(f"{where}: " + unknown(group, str(key), names_of(group)))
        if name in entries:
            entry = _require_mapping(entries[name], f"{where}.{name}", "groups")
            for part, options in entry.items():
                if part not in (*GROUPS, *TABLES, *FURTHER_PARTS):
                    raise ConfigError(f"{where}.{name}: " + unknown("group", str(part), GROUPS))
                _require_mapping(options, f"{where}.{name}.{part}", "options")
            yield f"{where}.{name}.", entry
        elif entries and where.startswith("+protocol=") and where.endswith(": for_task"):
            raise ConfigError(
                f"{prefix[:-2]} has no settings for task={name}, but for the tasks "
                f"{', '.join(map(str, entries))}"
            )


def _require_mapping(value: Any, where: str, of: str) -> Tree:
    """Return `value`; raise ConfigError, which says what it maps (`of`), if it is no mapping."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: got {quote(value)}; wanted a mapping of {of}")
    return value


def by_option(config: Mapping[str, Any], entry: Any) -> Any:
    """Return `entry`, or the part of it that belongs to the value of an option in `config`.

    An entry that depends on an option is a mapping {option: {value: part}}; see the text above. The
    result is None if it has no part for the value.
    """
    if not isinstance(entry, Mapping):
        return entry
    ((option, values),) = entry.items()
    node: Any = config
    for part in option.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return values.get(str(node))


def without(layer: Tree, path: Sequence[str]) -> Tree:
    """Return a copy of a layer without the value at `path`; the layer itself if there is none."""
    head, *rest = path
    if head not in layer:
        return layer
    if not rest:
        return {key: value for key, value in layer.items() if key != head}
    below = layer[head]
    return {**layer, head: without(below, rest)} if isinstance(below, dict) else layer


def tree_at(key: str, value: Any) -> Tree:
    """Return nested mappings with a single value at a dotted key: a.b gives {a: {b: value}}."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def merge_trees(tree: Tree, layer: Tree) -> Tree:
    """Return two nested mappings merged into one; values of `layer` win.

    Neither is changed, and the result shares their parts.
    """
    result = dict(tree)
    for key, value in layer.items():
        below = result.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        result[key] = merge_trees(below, value) if both else value  # type: ignore[arg-type]
    return result

"""Options that a file has for one task, model or runner alone.

A protocol or a preset gives them by the tables `for_task`, `for_model` and `for_runner`, which have
an entry for each name: options of any group. An entry may hold further tables, so that settings may
belong to a task and a model together:

    for_task:
      image:
        model: {backbone: {width: 128}}
        for_model: {sinkhorn: {optim: {weight_decay: 0.7}}}

Within its file such an entry wins over what the file says for all, an entry that asks for more wins
over one that asks for less, and of two that ask for as much the later in the order task, model,
runner. A later file wins over all of that: see `lra.composition.composer`.

What depends on an option is a table of its own, where other values have none:

    deviations:
      readout: {model.mixer.kernel: {dplr: "there C (1 - A^n) is learned"}}
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lra.composition.configuration import GROUPS, quote
from lra.errors import ConfigError, unknown

Tree = dict[str, Any]
TABLES = {"for_task": "task", "for_model": "model", "for_runner": "runner"}
"""The group whose choice picks an entry of each table."""
FURTHER_PARTS = ("deviations",)
"""What entries hold besides options of groups, also a mapping."""


def matching_options(
    layer: Mapping[str, Any],
    chosen: Mapping[str, str],
    names_of: Callable[[str], Sequence[str]],
    source: str,
) -> Tree:
    """Return what the tables of a layer set for the chosen task, model and runner.

    Args:
        layer: What one file sets, or the words of the command line; unresolved, plain.
        chosen: The name of the chosen model, task and runner.
        names_of: Returns the names of a group.
        source: The layer, as messages call it.

    Raises:
        ConfigError: a table names something unknown or holds no mapping, or that of a protocol
            lacks the task.
    """
    result: Tree = {}
    level: list[tuple[str, Mapping[str, Any]]] = [(f"{source}: " if source else "", layer)]
    while level:
        level = [entry for each in level for entry in _entries(*each, chosen, names_of)]
        for _, entry in level:
            result = merge_trees(result, {k: v for k, v in entry.items() if k not in TABLES})
    return result


def _entries(
    before: str,
    tables: Mapping[str, Any],
    chosen: Mapping[str, str],
    names_of: Callable[[str], Sequence[str]],
) -> Iterator[tuple[str, Tree]]:
    """Yield the chosen entry of each table, checked: its place for messages, and the entry."""
    for table, group in TABLES.items():
        where, name = f"{before}{table}", chosen.get(group, "")
        of_names = _mapping(tables.get(table) or {}, where, "names, or {}")
        for key in of_names:
            if key != name and key not in names_of(group):
                raise ConfigError(f"{where}: " + unknown(group, str(key), names_of(group)))
        if name in of_names:
            entry = _mapping(of_names[name], f"{where}.{name}", "groups")
            for part, options in entry.items():
                if part not in (*GROUPS, *TABLES, *FURTHER_PARTS):
                    raise ConfigError(f"{where}.{name}: " + unknown("group", str(part), GROUPS))
                _mapping(options, f"{where}.{name}.{part}", "options")
            yield f"{where}.{name}.", entry
        elif of_names and where.startswith("+protocol=") and where.endswith(": for_task"):
            raise ConfigError(
                f"{before[:-2]} has no settings for task={name}; it has them for "
                f"{', '.join(map(str, of_names))}"
            )


def _mapping(value: Any, where: str, of: str) -> Tree:
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: got {quote(value)}; wanted a mapping of {of}")
    return value


def by_option(config: Mapping[str, Any], entry: Any) -> Any:
    """Return an entry, or the part of it for the configuration's value of an option.

    An entry that depends on an option is a mapping {option: {value: part}}: see above.
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
    """Return one mapping with another on top; parts that only one has are shared."""
    result = dict(tree)
    for key, value in layer.items():
        below = result.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        result[key] = merge_trees(below, value) if both else value  # type: ignore[arg-type]
    return result

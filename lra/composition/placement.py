"""Set the value of one argument of the command line in a configuration, as Hydra would."""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from lra.composition.own_options import TABLES, Tree
from lra.conf.short_values import LONGEST_REASON, short
from lra.errors import OTHER_OPTIONS, ConfigError, near
from lra.runners.records import Memo

OF_KINDS = (
    "the files have a mapping or a list at this key, which `lra run --cfg job` prints; wanted a "
    "value of the same kind"
)


def is_plain(value: Any) -> bool:
    """Return whether a value contains neither a reference `${...}` nor a missing value `???`."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return not isinstance(value, str) or ("${" not in value and value != "???")


def put(memo: Memo, tree: Tree, word: Override) -> Tree:
    """Return a configuration in which the argument `word` has set its value.

    Configurations in which equal arguments change the same part share the changed part through
    `memo`: it is one object.

    Raises:
        ConfigError: The configuration has no such key, or a value of another kind there.
    """
    head, *rest = word.key_or_group.split(".")
    value = word.value()
    plain = word.type is OverrideType.CHANGE and not isinstance(value, dict)  # sets one value
    if plain and not rest and (changed := _with_value(tree, [head], value)):
        return changed
    if word.is_delete() or head not in tree or not is_plain(tree[head]):
        return by_omegaconf(tree, word, tree)

    def changed_part() -> Any:  # only the part below `head`, as OmegaConf is slow on a whole tree
        changed = _with_value(tree[head], rest, value) if plain and rest else None
        return by_omegaconf({head: tree[head]}, word, tree)[head] if changed is None else changed

    change = (word.type, word.key_or_group, type(value), repr(value))
    return {**tree, head: memo.of(change, (tree[head],), changed_part)}


def _with_value(tree: Any, path: Sequence[str], value: Any) -> Tree | None:
    """Return a copy of a mapping with another value at `path`, a list of keys.

    Returns None if there is no plain value at `path`; OmegaConf then decides what may be set.
    """
    head, *rest = path
    if not isinstance(tree, dict) or head not in tree:
        return None
    if rest:
        inner = _with_value(tree[head], rest, value)
        return None if inner is None else {**tree, head: inner}
    return None if isinstance(tree[head], dict) else {**tree, head: value}


def by_omegaconf(tree: Tree, word: Override, whole: Tree) -> Tree:
    """Return a copy of `tree` in which OmegaConf has set, added or deleted a value.

    Args:
        tree: The configuration, or the part of it that the argument changes.
        word: The argument, as Hydra has parsed it.
        whole: The whole configuration; a message suggests keys of it.

    Raises:
        ConfigError: OmegaConf refuses the change.
    """
    key, value = word.key_or_group, word.value()
    config = OmegaConf.create(tree)
    OmegaConf.set_struct(config, True)
    try:
        old_value = OmegaConf.select(config, key, throw_on_missing=False)
        if word.is_delete():
            # ~KEY=VALUE deletes a key only if it has this value; ~KEY deletes any.
            if old_value is None or value not in (None, old_value):
                raise ConfigError(
                    f"{short(str(word.input_line))}: the configuration has no such entry to delete"
                )
            above, _, leaf = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, above) if above else config)[leaf]
        elif word.is_add() and old_value is not None and not isinstance(value, dict | list):
            raise ConfigError(
                f"{short(str(word.input_line))}: the key {key} exists already; remove the plus"
            )
        else:
            adds = word.type is not OverrideType.CHANGE
            # A rule for the layers takes the place of a list of them.
            merge = key != "model.layers"
            OmegaConf.update(config, key, value, merge=merge, force_add=adds)
    except (ConfigAttributeError, ConfigKeyError) as error:
        keys = [*keys_of(whole)]
        if key in keys:
            raise ConfigError(
                f"{short(str(word.input_line))}: {_write_reason(error)}. To add keys to the "
                f"mapping {key}, write two pluses: ++{key}=..."
            ) from error
        typed_value = short(str(word.input_line).partition("=")[2])
        raise ConfigError(unknown_key(key, typed_value, keys)) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{short(str(word.input_line))}: {_write_reason(error)}") from error
    return dict(OmegaConf.to_container(config))  # type: ignore[arg-type]


def _write_reason(error: Exception) -> str:
    """Return the first line of an error of OmegaConf, or a clearer sentence."""
    line = str(error).partition("\n")[0]
    return OF_KINDS if line.startswith("Cannot merge") else line


def keys_of(tree: Tree, above: str = "") -> Iterator[str]:
    """Yield every dotted key of a configuration; `above` precedes each key."""
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{above}{key}.")


def unknown_key(key: str, value: str, keys: Sequence[str]) -> str:
    """Return the message for an unknown key, with at most three keys that may have been meant.

    Args:
        key: The unknown dotted key.
        value: Its value as the user typed it.
        keys: Every key of the configuration.
    """
    above, _, name = key.rpartition(".")
    group, dot, _ = key.partition(".")
    if group in TABLES:
        return (
            f"unknown key {key!r}: the files have no such entry; to add it, write two pluses: "
            f"++{key}={value}"
        )
    siblings = sorted(known for known in keys if known.rpartition(".")[0] == above)
    # First the key that lra has for another program's name, then the same name at another place,
    # then similar names next to the unknown key.
    renamed = [known for known in keys if known.rpartition(".")[2] == OTHER_OPTIONS.get(name)]
    same_name = [known for known in keys if known.rpartition(".")[2] == name]
    similar = near(name, (known.rpartition(".")[2] for known in siblings))
    candidates = (*renamed, *same_name)
    matches = [known for known in candidates if not dot or known.startswith(f"{group}.")] or renamed
    matches = matches or [f"{above}.{sibling}".lstrip(".") for sibling in similar] or same_name
    hint = f": did you mean {' or '.join(map(repr, matches[:3]))}?" if matches else "."
    hint += f" Known here: {short(', '.join(siblings), LONGEST_REASON)}." if siblings else ""
    return f"unknown key {key!r}{hint} `lra run --cfg job` prints every key of the configuration."

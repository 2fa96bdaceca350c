"""Sets in a configuration what one argument of the command line says, as Hydra does it."""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from lra.composition.own_options import TABLES, Tree
from lra.conf.short_values import LONGEST_REASON, short
from lra.errors import OTHER_OPTIONS, ConfigError, near
from lra.runners.records import Memo

OF_KINDS = "wanted a mapping where the files have one, and a list where they have a list"


def is_plain(value: Any) -> bool:
    """Return whether a value holds no reference `${...}` and no missing value `???`."""
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
    plain = word.type is OverrideType.CHANGE and not isinstance(value, dict)
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
    """Return a copy of a mapping with another value at `path`.

    Returns None where no plain value lies there: OmegaConf then decides what may be set.
    """
    head, *rest = path
    if not isinstance(tree, dict) or head not in tree:
        return None
    if rest:
        inner = _with_value(tree[head], rest, value)
        return None if inner is None else {**tree, head: inner}
    return None if isinstance(tree[head], dict) else {**tree, head: value}


def by_omegaconf(tree: Tree, word: Override, whole: Tree) -> Tree:
    """Let OmegaConf set, add or delete what the argument `word` says.

    Args:
        tree: The configuration, or the part of it that the argument is about.
        word: As Hydra has parsed it.
        whole: The whole configuration, whose keys a message proposes.

    Raises:
        ConfigError: OmegaConf refuses it.
    """
    key, value = word.key_or_group, word.value()
    config = OmegaConf.create(tree)
    OmegaConf.set_struct(config, True)
    try:
        there = OmegaConf.select(config, key, throw_on_missing=False)
        if word.is_delete():
            if there is None or value not in (None, there):
                raise ConfigError(f"{short(str(word.input_line))}: there is no such entry")
            above, _, leaf = key.rpartition(".")
            with open_dict(config):
                del (OmegaConf.select(config, above) if above else config)[leaf]
        elif word.is_add() and there is not None and not isinstance(value, dict | list):
            raise ConfigError(
                f"{short(str(word.input_line))}: the files have {key}; remove the plus"
            )
        else:
            adds = word.type is not OverrideType.CHANGE
            OmegaConf.update(config, key, value, merge=True, force_add=adds)
    except (ConfigAttributeError, ConfigKeyError) as error:
        keys = [*keys_of(whole)]
        if key in keys:
            why = (
                f"{key} cannot be set like this: {_first_line(error)}. ++{key}=... adds keys to it"
            )
            raise ConfigError(why) from error
        shown = short(str(word.input_line).partition("=")[2])
        raise ConfigError(unknown_key(key, shown, keys)) from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{short(str(word.input_line))}: {_first_line(error)}") from error
    return dict(OmegaConf.to_container(config))  # type: ignore[arg-type]


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0]
    return OF_KINDS if line.startswith("Cannot merge") else line


def keys_of(tree: Tree, above: str = "") -> Iterator[str]:
    """Yield every key of a configuration, with dots."""
    for key, value in tree.items():
        yield f"{above}{key}"
        if isinstance(value, dict):
            yield from keys_of(value, f"{above}{key}.")


def unknown_key(key: str, value: str, keys: Sequence[str]) -> str:
    """Return the message for an unknown key, with at most three keys that may have been meant.

    First come the names that lra has for options of other programs, and keys of the same group.

    Args:
        key: The unknown key, with dots.
        value: Its value as typed.
        keys: Every key of the configuration.
    """
    above, _, leaf = key.rpartition(".")
    group, dot, _ = key.partition(".")
    if group in TABLES:
        return (
            f"unknown key {key!r}: the files have no such entry; write two pluses to add it: "
            f"++{key}={value}"
        )
    siblings = sorted(each for each in keys if each.rpartition(".")[0] == above)
    ours = [each for each in keys if each.rpartition(".")[2] == OTHER_OPTIONS.get(leaf)]
    alike = [each for each in keys if each.rpartition(".")[2] == leaf]
    beside = near(leaf, (each.rpartition(".")[2] for each in siblings))
    matches = [each for each in (*ours, *alike) if not dot or each.startswith(f"{group}.")] or ours
    matches = matches or [f"{above}.{each}".lstrip(".") for each in beside] or alike
    hint = f": did you mean {' or '.join(map(repr, matches[:3]))}?" if matches else "."
    hint += f" Known here: {short(', '.join(siblings), LONGEST_REASON)}." if siblings else ""
    return f"unknown key {key!r}{hint} `lra run --cfg job` prints every key of the configuration."

"""Plain values put into a configuration as Hydra puts them, without its time for each.

Beside `loader`, since `own_options` serves verbs that do without Hydra.
"""

from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import OverrideType

from lra.composition.own_options import Tree, merged

PUTTING = (OverrideType.CHANGE, OverrideType.ADD, OverrideType.FORCE_ADD)


class Unclear(Exception):
    """A word that does more than putting plain values among plain values."""


def changed(tree: Any, path: Sequence[str], value: Any, way: OverrideType) -> Tree:
    """Return a mapping with a value at `path`, as Hydra puts it; what lies outside is shared.

    Raises:
        Unclear: Only Hydra can tell.
    """
    head, *rest = path
    if way not in PUTTING or not head.isidentifier() or not isinstance(tree, dict):
        raise Unclear
    adds, there = way is not OverrideType.CHANGE, head in tree
    if not there and not adds:
        raise Unclear
    below: Any = tree.get(head, {})
    if rest:
        return {**tree, head: changed(below, rest, value, way)}
    if isinstance(value, dict):
        fits = isinstance(below, dict) and (adds or _closed(below, value))
        if not fits or not is_plain(value):
            raise Unclear
        return {**tree, head: merged(below, value)}
    replaces = way is OverrideType.ADD and below is not None and not isinstance(value, list)
    odd = value is not None and not isinstance(value, str | int | float | list)
    if odd or (there and (isinstance(below, dict) or replaces)):
        raise Unclear
    return {**tree, head: value}


def _closed(tree: Tree, value: Tree) -> bool:
    """Return whether a mapping has a place for every part of another."""
    for key, part in value.items():
        below: Any = tree.get(key)
        if key not in tree or isinstance(below, dict) is not isinstance(part, dict):
            return False
        if isinstance(part, dict) and not _closed(below, part):
            return False
    return True


def is_plain(value: Any) -> bool:
    """Return whether a value stands for itself: no reference, nothing missing."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return not isinstance(value, str) or ("${" not in value and value != "???")

"""Write a type, or the path of a results folder, as messages show it."""

import shlex
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

WORDS = {
    int: "whole number", float: "number", str: "text", bool: "true or false", NoneType: "null",
    Any: "anything", dict: "mapping", list: "list",
}  # fmt: skip


def is_union(kind: Any) -> bool:
    """Return whether a type is a union, such as `int | None`."""
    return get_origin(kind) in (Union, UnionType)


def type_phrase(kind: Any) -> str:
    """Return a type in words, for example `list of whole numbers, or null` for list[int] | None."""
    inner = get_args(kind)
    if is_union(kind):
        *others, last = map(type_phrase, inner)
        return " or ".join(others) + (", or null" if last == "null" else f" or {last}")
    if isinstance(origin := get_origin(kind), type) and inner:
        if issubclass(origin, Mapping):
            return f"mapping to {_pluralise(type_phrase(inner[-1]))}"
        return f"list of {_pluralise(type_phrase(inner[0]))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "choice"
    if is_dataclass(kind):
        return "mapping"
    return WORDS.get(kind) or str(getattr(kind, "__name__", kind))


def _pluralise(word: str) -> str:
    """Return the plural of a phrase of `type_phrase`."""
    if word.startswith(("list of", "mapping to")):
        return word.replace("list of", "lists of").replace("mapping to", "mappings to")
    return word if word in ("text", "anything", "true or false") else f"{word}s"


def in_results(root: Path) -> str:
    """Return the flag `--results ROOT` for a command; "" if `root` is the default folder."""
    return "" if root == Path("results") else f" --results {shlex.quote(str(root))}"

"""How a type, a word of a command and a folder of results are spelt in a message."""

import re
import shlex
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text",
    NoneType: "null", dict: "a mapping", list: "a list",
}  # fmt: skip


EXAMPLES = {int: ", as in [1024]", str: ", as in [linear]"}
"""Of lists of one."""


def accepted(kind: Any) -> str:
    """Return what a type takes: list[int] | None is a list of whole numbers, or null."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return ", or ".join(accepted(argument) for argument in arguments)
    if get_origin(kind) is list and arguments:
        named = accepted(arguments[0])
        counted = named.startswith("a ") or arguments[0] is str
        example = EXAMPLES.get(arguments[0], "")
        return f"a list of {named.removeprefix('a ')}s{example}" if counted else "a list"
    if get_origin(kind) is dict and arguments:
        return "a mapping"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(member.name for member in kind)}"
    if kind in KINDS:
        return KINDS[kind]
    return getattr(kind, "__name__", str(kind))


def escaped(text: str) -> str:
    """Return a text that OmegaConf resolves to this one: `${` refers to nothing."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def in_shell(typed: str) -> str:
    """Quote a word for a shell, readably where it has quotes of its own."""
    readable = "'" in typed and not re.search(r'["$`\\!]', typed)
    return f'"{typed}"' if readable else shlex.quote(typed)


def in_results(root: Path) -> str:
    """Return what a command needs to find a results folder: nothing for the one it looks into."""
    return "" if root == Path("results") else f" --results {shlex.quote(str(root))}"

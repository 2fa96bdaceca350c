"""Read the type, the allowed values and the meaning of options from classes and YAML files.

A meaning is written once: in the `Args` of a class's docstring, below a field of a dataclass, or in
a comment of the YAML file. For classes of lra, all this is stored in `conf/options.json`, so that
`lra list` need not import torch. A class of the user's package is imported and read.
"""

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, get_args

from lra.composition.catalogue import ours
from lra.composition.class_path import locate, named_plugins
from lra.composition.spelling import is_union, type_phrase
from lra.conf.rooms import stored_name

CLASSES = {
    "hardware": "runners.measurement.hardware.HardwareProfile",
    "optim": "runners.training.optim.OptimConfig",
    "logger": "lra.composition.run.Logger",
    "search": "lra.tuning.record.SearchOptions",
}
"""The class that defines the options of a group, if the files of the group name no class."""
CONTROL, BACKBONE = "lra.composition.run.Control", "models.backbone.config.BackboneConfig"


class Parameter(NamedTuple):
    """The description of an option in its class."""

    type: str
    values: Sequence[tuple[str, str]]
    """Each allowed value with its meaning; empty if every value of the type is allowed."""
    meaning: str
    switch: bool = False
    """Whether the values are true and false (and null, if optional)."""
    optional: bool = False
    """Whether the value may be null."""


@cache
def _read_recorded() -> dict[str, dict[str, list[Any]]]:
    """Return the fields of `Parameter` for each option of each class of lra."""
    text = (ours() / "options.json").read_text(encoding="utf-8")
    recorded: dict[str, dict[str, list[Any]]] = json.loads(text)
    return recorded


def parameters(class_path: str) -> dict[str, Parameter]:
    """Return the options of the class, function or dataclass at `class_path`, in order.

    Returns {} for a class of a package that the command does not name, because lra does not import
    such a package.
    """
    if (options := _read_recorded().get(stored_name(class_path))) is not None:
        return {name: Parameter(*option) for name, option in options.items()}
    package = class_path.partition(".")[0]
    return class_options(locate(class_path, [package])) if package in named_plugins() else {}


def class_options(target: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the options of a class, function or dataclass in order, read from its source.

    The docstring of a derived class replaces the meaning that a base class gives an option.
    """
    from lra.composition.binding import schema  # imported late: options.json suffices for lra

    # From the most general base class (without `object`) to the class itself.
    lineage = target.__mro__[-2::-1] if isinstance(target, type) else [target]
    meanings: dict[str, str] = {}
    for ancestor in lineage:
        init = vars(ancestor).get("__init__") if isinstance(ancestor, type) else None
        for text in (ancestor.__doc__, getattr(init, "__doc__", None)):
            meanings |= arguments(inspect.cleandoc(text or ""))
        if isinstance(ancestor, type) and (is_dataclass(ancestor) or "declares" in vars(ancestor)):
            meanings |= _read_field_texts(ancestor)
    options = schema(target)
    return {
        name: _make_parameter(kind, meanings.get(name, "")) for name, (kind, _) in options.items()
    }


def arguments(docstring: str) -> dict[str, str]:
    """Return the text of each entry in `Args` or `Options` of a docstring, by its name."""
    section = re.search(r"^(?:Args|Options):\n((?:(?: .*)?\n?)+)", docstring, re.MULTILINE)
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", f"\n{section[1]}" if section else ""):
        if match := re.fullmatch(r"\s*(\w+(?:, \w+)*):\s*(.*)", entry, re.DOTALL):
            names, text = match.groups()
            entries |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return entries


def _read_field_texts(kind: type) -> dict[str, str]:
    """Return the docstring below each field or enum member of a class, in one line, by name."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # a class that a call made has no source
        return {}
    body = node.body if isinstance(node, ast.ClassDef) else []
    texts = {}
    for field, text in pairwise(body):
        # Members of enums are plain assignments; annotated fields have one `target`; 0: neither.
        target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", 0)
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr):
            texts[target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


def _make_parameter(kind: Any, meaning: str) -> Parameter:
    """Return the description of an option of type `kind`.

    An enum gives the allowed values, and its docstring replaces an empty `meaning`.
    """
    enums = [
        leaf for leaf in _find_leaves(kind) if isinstance(leaf, type) and issubclass(leaf, Enum)
    ]
    values = [
        (str(member.value), texts.get(member.name, ""))
        for enum in enums
        for texts in (_read_field_texts(enum),)
        for member in enum
    ]
    docstrings = [" ".join((enum.__dict__["__doc__"] or "").split()) for enum in enums]
    alternatives = get_args(kind) if is_union(kind) else (kind,)
    return Parameter(
        type_phrase(kind),
        values,
        meaning or next(filter(None, docstrings), ""),
        alternatives[0] is bool,
        alternatives[-1] is NoneType,
    )


def _find_leaves(kind: Any) -> list[Any]:
    """Return the types inside a type without arguments: str and int for dict[str, list[int]]."""
    return [leaf for part in get_args(kind) for leaf in _find_leaves(part)] or [kind]


def comments(file: Path) -> dict[str, str]:
    """Return the comment of each key of a YAML file, by the dotted key.

    The comment of a key follows it in the same line, or stands in the lines above the key. Several
    lines above a key of the top level describe the file, so they do not count.
    """
    by_path: dict[str, str] = {}
    above: list[str] = []
    open_keys: list[tuple[int, str]] = []  # the indentation and the name of each key around a line
    for line in file.read_text(encoding="utf-8").splitlines():
        key = re.match(r"( *)([A-Za-z_]\w*):(?:\s|$)", line)
        if line.strip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        if key:
            depth = len(key[1])
            open_keys = [(indent, name) for indent, name in open_keys if indent < depth]
            path = ".".join([*(name for _, name in open_keys), key[2]])
            open_keys.append((depth, key[2]))
            same_line = re.search(r"\s#\s*(.*)$", line)
            text_above = " ".join(above) if depth or len(above) == 1 else ""
            by_path[path] = (same_line[1] if same_line else text_above).strip()
        above = []
    return by_path

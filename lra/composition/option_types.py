"""What classes and YAML files say of an option: type, allowed values and meaning.

A meaning is written once: in the `Args` of the docstring of a class, under the field of a
dataclass, or in the comment of its line of YAML. What our own classes say is in
`conf/options.json`, so that a list needs no torch; those of a package that was named are asked.
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
"""What types the options of a group whose files name no class."""
CONTROL, BACKBONE = "lra.composition.run.Control", "models.backbone.config.BackboneConfig"


class Parameter(NamedTuple):
    """An option as its class describes it."""

    type: str
    values: Sequence[tuple[str, str]]
    """Each allowed value with its meaning, where there is a list of them."""
    meaning: str
    switch: bool = False
    """Whether it is true or false, or perhaps null."""
    optional: bool = False
    """Whether it may be null."""


@cache
def _recorded() -> dict[str, dict[str, list[Any]]]:
    text = (ours() / "options.json").read_text(encoding="utf-8")
    recorded: dict[str, dict[str, list[Any]]] = json.loads(text)
    return recorded


def parameters(class_path: str) -> dict[str, Parameter]:
    """Return the options of a class, function or dataclass in order.

    None of a class of a package that nobody has named: it is not imported.
    """
    if (options := _recorded().get(stored_name(class_path))) is not None:
        return {name: Parameter(*option) for name, option in options.items()}
    package = class_path.partition(".")[0]
    return class_options(locate(class_path, [package])) if package in named_plugins() else {}


def class_options(target: Callable[..., Any]) -> dict[str, Parameter]:
    """Return the options of a class, function or dataclass in order, as it says them itself."""
    from lra.composition.binding import schema  # which a list of what is ours does without

    lineage = target.__mro__[-2::-1] if isinstance(target, type) else [target]
    meanings: dict[str, str] = {}
    for each in lineage:
        init = vars(each).get("__init__") if isinstance(each, type) else None
        for text in (each.__doc__, getattr(init, "__doc__", None)):
            meanings |= arguments(inspect.cleandoc(text or ""))
        if isinstance(each, type) and (is_dataclass(each) or "declares" in vars(each)):
            meanings |= _texts(each)
    options = schema(target)
    return {name: _parameter(kind, meanings.get(name, "")) for name, (kind, _) in options.items()}


def arguments(docstring: str) -> dict[str, str]:
    """Return the entries of `Args`, or of `Options`, of a docstring in Google's style."""
    part = re.search(r"^(?:Args|Options):\n((?:(?: .*)?\n?)+)", docstring, re.MULTILINE)
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \w)", f"\n{part[1]}" if part else ""):
        if found := re.fullmatch(r"\s*(\w+(?:, \w+)*):\s*(.*)", entry, re.DOTALL):
            entries |= dict.fromkeys(found[1].split(", "), " ".join(found[2].split()))
    return entries


def _texts(kind: type) -> dict[str, str]:
    """Return the text under each field of a class, or under each member, in one line."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # made by a call
        return {}
    body = node.body if isinstance(node, ast.ClassDef) else []
    texts = {}
    for field, text in pairwise(body):
        target = field.targets[0] if isinstance(field, ast.Assign) else getattr(field, "target", 0)
        if isinstance(target, ast.Name) and isinstance(text, ast.Expr):
            texts[target.id] = " ".join(str(ast.literal_eval(text.value)).split())
    return texts


def _parameter(kind: Any, meaning: str) -> Parameter:
    choices = [each for each in _leaves(kind) if isinstance(each, type) and issubclass(each, Enum)]
    values = [
        (str(each.value), texts.get(each.name, ""))
        for choice in choices
        for texts in (_texts(choice),)
        for each in choice
    ]
    docs = [" ".join((choice.__dict__["__doc__"] or "").split()) for choice in choices]
    united = get_args(kind) if is_union(kind) else (kind,)
    return Parameter(
        type_phrase(kind),
        values,
        meaning or next(filter(None, docs), ""),
        united[0] is bool,
        united[-1] is NoneType,
    )


def _leaves(kind: Any) -> list[Any]:
    return [leaf for each in get_args(kind) for leaf in _leaves(each)] or [kind]


def comments(file: Path) -> dict[str, str]:
    """Return the comment of each key of a YAML file, by its dotted path.

    That is what stands behind a key, or else on the lines above it, at its own depth.
    """
    by_path: dict[str, str] = {}
    above: list[str] = []
    open_keys: list[tuple[int, str]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        key = re.match(r"( *)([A-Za-z_]\w*):(?:\s|$)", line)
        if line.strip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        if key:
            depth = len(key[1])
            open_keys = [entry for entry in open_keys if entry[0] < depth]
            path = ".".join([*(name for _, name in open_keys), key[2]])
            open_keys.append((depth, key[2]))
            behind = re.search(r"\s#\s*(.*)$", line)
            text = behind[1] if behind else " ".join(above) if depth or len(above) == 1 else ""
            by_path[path] = text.strip()
        above = []
    return by_path

"""Check the keys at the top level of a composed configuration before other code reads it.

The constructor of a class checks the options inside a group: see `lra.composition.compose`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from lra.conf.short_values import short
from lra.errors import ConfigError, unknown
from lra.runners.records import Memo

SWEEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]{0,199}")
SWEEP_WORDS = (
    "a name of at most 200 letters, digits and characters ._=,+- that begins with a letter or digit"
)
LONGEST_NAME = 200
DEEPEST = 50
LARGEST = 2**63 - 1
"""The largest whole number that tables and random generators can store."""


class KeyRule(NamedTuple):
    """The values that a key accepts: in words for messages, and as a function that checks one."""

    words: str
    suits: Callable[[Any], bool]


def _is_name(value: Any) -> bool:
    """Return whether a value is a text that lra accepts as a name."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= LONGEST_NAME
        and value.isprintable()
        and not value.isspace()
    )


def _is_row(value: Any) -> bool:
    """Return whether a value names layers: a list of names, or text with a letter for each."""
    return NAMES.suits(value) or (isinstance(value, str) and value.isprintable())


MAPPING = KeyRule("a mapping of options", lambda value: isinstance(value, Mapping))
OPTIONS = KeyRule("a mapping of options, or {}", lambda v: v is None or isinstance(v, Mapping))
NAME = KeyRule(f"a name of at most {LONGEST_NAME} printable characters", _is_name)
NAMES = KeyRule(
    "a list of names, as in [fnet,sdpa]",
    lambda value: isinstance(value, list) and all(map(_is_name, value)),
)
RULE = ("cycle", "first", "last")
"""Keys of a rule for layers: `lra.composition.layer_list`."""
LAYERS = KeyRule(
    f"{NAMES.words}, a rule such as {{cycle: [fnet, sdpa]}}, or a letter for each layer",
    lambda value: (
        all(key in RULE and _is_row(names) for key, names in value.items())
        if isinstance(value, Mapping)
        else value is None or _is_row(value)
    ),
)
ANYTHING = KeyRule("anything", lambda _: True)

GROUPS = ("model", "task", "hardware", "optim", "runner", "logger")
"""Keys at the top level that contain options; each is also a group of files to choose from."""
TOP = {
    **dict.fromkeys(GROUPS, MAPPING),
    **dict.fromkeys(("for_task", "for_model", "for_runner"), OPTIONS),
    "protocol": NAME,
    "scale": NAME,
    "published_models": NAMES,
    "deviations": OPTIONS,
    "called": OPTIONS,
    "pattern": MAPPING,
    "seed": KeyRule(
        f"a whole number from 0 to {LARGEST}",
        lambda value: type(value) is int and 0 <= value <= LARGEST,
    ),
    "results": KeyRule(
        "the path of a folder, as in results=results",
        lambda value: isinstance(value, str) and bool(value.strip()) and "\0" not in value,
    ),
    "sweep": KeyRule(
        SWEEP_WORDS,
        lambda value: isinstance(value, str) and SWEEP_NAME.fullmatch(value) is not None,
    ),
    "plugins": KeyRule(
        "a list of package names, as in [my_package]",
        lambda value: (
            isinstance(value, list)
            and all(isinstance(name, str) and name.isidentifier() for name in value)
        ),
    ),
    "report": KeyRule(
        "true, false, null, or a mapping such as {write: true, style: paper_column}",
        lambda value: isinstance(value, Mapping) or value is None or type(value) is bool,
    ),
}
"""Every key at the top level, except `about`, which a preset may add."""
ALLOWED = frozenset({*TOP, "about"})
INSIDE = {
    "model": {
        "name": NAME,
        "mixer": MAPPING,
        "stack": MAPPING,
        "layers": LAYERS,
        "layer_options": OPTIONS,
        "backbone": OPTIONS,
        "about": ANYTHING,
    },
    "model.mixer": {"class_path": NAME},
    "model.stack": {"class_path": NAME},
    "pattern": {"name": NAME, "layers": LAYERS, "depth": ANYTHING, "parts": MAPPING},
    "task": {"name": NAME, "class_path": NAME},
    "hardware": {"name": NAME},
    "optim": {"name": NAME},
    "runner": {"name": NAME, "class_path": NAME, "section": NAME},
    "logger": {"name": NAME},
    "report": {
        "write": KeyRule("true, false or null", lambda value: value is None or type(value) is bool),
        "style": KeyRule(
            "the name of a style, or the path of a file",
            lambda value: value is None or (isinstance(value, str) and bool(value.strip())),
        ),
    },
}
"""Keys inside groups that lra reads itself; the class of the group defines all other keys."""
OPTIONAL = frozenset(
    {"optim.name", "logger.name", "runner.class_path", "runner.section", "published_models"}
    | {"deviations", "called", "pattern", "scale", "report.write", "report.style"}
    | {f"model.{key}" for key in ("mixer", "stack", "layers", "layer_options", "backbone", "about")}
)
NEEDED = frozenset({*TOP} - OPTIONAL)
"""Keys at the top level that every configuration has."""


def check(config: Mapping[str, Any], memo: Memo | None = None) -> None:
    """Raise ConfigError if a key is unknown or missing, or if its value has the wrong type.

    Args:
        config: The composed configuration, with resolved references.
        memo: Objects that the runs of a sweep share, so that equal parts are checked once.
    """
    memo = memo or Memo()
    if not NEEDED <= config.keys() <= ALLOWED:  # quick, as most configurations have right keys
        for key in config:
            if key not in ALLOWED:
                raise ConfigError(unknown("key", str(key), TOP))
        _check_keys(config, TOP, "")
    for name, value in config.items():
        if type(value) is int:  # each run has a different seed, so there is nothing to share
            _check_part(name, value)
        else:
            memo.of(("checked", name), (value,), partial(_check_part, name, value))


def _check_part(name: str, value: Any) -> None:
    """Raise ConfigError if the value of the top-level key `name`, or a key inside it, is wrong."""
    if name in TOP:
        _check_key(name, value, TOP[name])
    for group, keys in INSIDE.items():
        head, *rest = group.split(".")
        if head != name:
            continue
        node: Any = value
        for part in rest:
            node = node.get(part, {}) if isinstance(node, Mapping) else {}
        # A model has a mixer or a stack; the other one is {} here.
        if isinstance(node, Mapping) and (group not in ("model.mixer", "model.stack") or node):
            _check_keys(node, keys, f"{group}.")
    if name in ("model", "report"):
        for key in value if isinstance(value, Mapping) else ():
            if key not in INSIDE[name]:
                raise ConfigError(f"{name}: " + unknown("key", str(key), INSIDE[name]))
    storable(value, name, depth=1)


class ReportChoice(NamedTuple):
    """The options of the report at the end of a sweep."""

    write: bool | None
    """Whether to write a report; None: only after a sweep of several runs."""
    style: str | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ReportChoice":
        """Read the key `report` of a configuration: a mapping, or the value of `write` alone."""
        node = config["report"]
        if isinstance(node, Mapping):
            return cls(node.get("write"), node.get("style"))
        return cls(node, None)


def long_forms(words: Sequence[str]) -> list[str]:
    """Return the arguments of a command; with `report.style=...`, `report=true` is expanded.

    It becomes `report.write=true`, because `report=true` would replace the whole mapping `report`.
    """
    if not any(word.startswith("report.") for word in words):
        return [*words]
    short = {f"report={value}": f"report.write={value}" for value in ("true", "false", "null")}
    return [short.get(word.lower(), word) for word in words]


def _check_keys(node: Mapping[str, Any], keys: Mapping[str, KeyRule], prefix: str) -> None:
    """Raise ConfigError if `node` lacks one of `keys`, or has a wrong value; `prefix`: its key."""
    for key, rule in keys.items():
        if key not in node:
            if prefix + key in OPTIONAL:
                continue
            raise ConfigError(f"{prefix}{key} is missing; wanted {rule.words}")
        _check_key(prefix + key, node[key], rule)


def _check_key(key: str, value: Any, rule: KeyRule) -> None:
    if not rule.suits(value):
        raise ConfigError(f"{key}: got {quote(value)}; wanted {rule.words}")


def storable(value: Any, where: str = "", depth: int = 0) -> None:
    """Raise ConfigError if a value cannot be stored as JSON with the results.

    Numbers must be finite, whole numbers must fit 64 bits, and text and keys must be valid Unicode.

    Args:
        value: A value of any type, for example a nested mapping.
        where: Its key, for messages.
        depth: The number of levels above the value.
    """
    for key, leaf in _leaves(value, where, depth):
        if leaf is None or isinstance(leaf, bool):
            continue
        if isinstance(leaf, float):
            if not math.isfinite(leaf):
                raise ConfigError(
                    f"{key}: got {leaf}; wanted a finite number, or null if the option can be "
                    "switched off"
                )
        elif isinstance(leaf, int):
            if not -LARGEST <= leaf <= LARGEST:
                raise ConfigError(
                    f"{key}: got {quote(leaf)}; wanted a whole number from -{LARGEST} to {LARGEST}"
                )
        elif not isinstance(leaf, str):
            raise ConfigError(
                f"{key}: got {quote(leaf)}; wanted a number, a text, a list or a mapping"
            )
        elif not _is_text(leaf):
            raise ConfigError(f"{key}: got {leaf!a}; wanted text that can be written as UTF-8")


def _leaves(value: Any, where: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of everything in a tree that is no list or mapping."""
    if depth > DEEPEST:
        raise ConfigError(
            f"{where[:80]}: this value is nested deeper than {DEEPEST} levels; use fewer levels"
        )
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str) or not _is_text(key):
                raise ConfigError(f"{where or 'the top'}: got the key {key!a}; wanted a text")
            yield from _leaves(item, f"{where}.{key}" if where else key, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{where}[{index}]", depth + 1)
    else:
        yield where, value


def _is_text(text: str) -> bool:
    """Return whether a text can be written as UTF-8, because it has no surrogate halves."""
    return text.isascii() or not any(0xD800 <= ord(letter) <= 0xDFFF for letter in text)


def quote(value: Any) -> str:
    """Return a value as messages show it: as Python writes it, and shortened."""
    text = ascii(value) if isinstance(value, str) and not _is_text(value) else repr(value)
    return short(text)

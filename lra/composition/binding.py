"""Turns options, given as plain values, into the typed arguments of a constructor.

A constructor is the schema of its YAML node: its keyword-only parameters define the keys and their
types. No value is converted into a different one, and every error names the key, its value, what is
accepted and what to do.
"""

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from lra.composition.configuration import quote, storable
from lra.composition.spelling import is_union, type_phrase
from lra.errors import ConfigError, near, unknown

GIVEN = frozenset({"self", "site", "config"})
"""Parameters of a mixer or a stack that lra passes itself, so that they are no options."""
MISSING_TEXT = "???"
"""The text that stands in a configuration for a value which the user must give."""


class OptionSpec(NamedTuple):
    """The type and the default of a parameter of a constructor."""

    kind: Any
    """The type annotation."""
    default: Any
    """The default; `MISSING` if there is none. Nothing may change it, because it is shared."""


def parameters(target: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters of a class or function; none for one written in C."""
    try:
        return {*inspect.signature(target).parameters}
    except (TypeError, ValueError):
        return set()


@lru_cache(maxsize=1024)
def schema(target: Callable[..., Any]) -> Mapping[str, OptionSpec]:
    """Return the keyword parameters of `target` by name. Raises ConfigError for any other."""
    call = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(target if is_dataclass(target) else call)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"{getattr(target, '__qualname__', target)}: Python cannot evaluate the type "
            f"annotations of the constructor: {error}"
        ) from error
    if is_dataclass(target):
        return {
            f.name: OptionSpec(
                hints[f.name], f.default if f.default_factory is MISSING else f.default_factory()
            )
            for f in fields(target)
            if f.init
        }
    options = {}
    for name, parameter in inspect.signature(call).parameters.items():
        if name in GIVEN or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            continue  # lra passes this argument itself
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or name not in hints:
            raise ConfigError(
                f"{getattr(target, '__qualname__', target)}: the parameter {name!r} must be "
                "keyword-only and have a type annotation, because these parameters are the options "
                "that a YAML file can set"
            )
        default = parameter.default
        options[name] = OptionSpec(hints[name], MISSING if default is parameter.empty else default)
    return MappingProxyType(options)


@lru_cache(maxsize=1024)
def defaults(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the options of `target` that have a default, as plain JSON; nothing may change it."""
    options = schema(target).items()
    return MappingProxyType({k: plain(v) for k, (_, v) in options if v is not MISSING})


def bind(target: Callable[..., Any], node: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return all keyword arguments of `target`: the values of `node`, and defaults for the others.

    Raises ConfigError for an unknown key (with similar names), a missing value, a value of the
    wrong type (1.7 for an int, 3 for text), and a value that cannot be stored with the results:
    see `lra.composition.configuration.storable`.

    Args:
        target: A class or a function.
        node: Options by name; None: no options.
        where: The key of the node, for messages.
    """
    parameters, values = schema(target), node or {}
    for key in values:
        if key not in parameters:
            raise ConfigError(f"{where}: " + unknown("option", str(key), parameters))
    storable(values, where)
    bound = {}
    for name, (kind, default) in parameters.items():
        value = values.get(name, default)
        if value is MISSING or value == MISSING_TEXT:
            raise ConfigError(f"{where}.{name} is missing; wanted {_describe_accepted(kind)}")
        try:
            bound[name] = _convert(value, kind)
        except TypeError as error:
            raise ConfigError(_write_refusal(where, name, value, kind)) from error
        except ConfigError as error:  # of a mapping inside
            raise ConfigError(f"{where}.{name}: {error}") from error
    storable(plain(bound), where)  # again, because this also checks defaults of a user's class
    return copy.deepcopy(bound)


def _convert(value: Any, kind: Any) -> Any:
    """Return a value as its type needs it: 1 becomes 1.0, and a name becomes a member of an enum.

    Raises TypeError if the value has another type, or if the conversion would change it.
    """
    origin, inside = get_origin(kind) or kind, get_args(kind)
    if is_union(kind):
        for alternative in inside:
            with suppress(TypeError):
                return _convert(value, alternative)
    elif isinstance(origin, type):
        if issubclass(origin, list | tuple) and isinstance(value, list | tuple):
            (item_kind,) = inside[:1] or (Any,)  # a bare `list` may hold anything
            return [_convert(item, item_kind) for item in value]
        if issubclass(origin, Mapping) and isinstance(value, Mapping):
            (item_kind,) = inside[1:] or (Any,)  # the type of the values, not of the keys
            return {key: _convert(item, item_kind) for key, item in value.items()}
        return _convert_single(value, origin)
    raise TypeError


def _convert_single(value: Any, kind: type) -> Any:
    """Return what `_convert` returns, for a type that is neither a union, list nor mapping."""
    if issubclass(kind, Enum) and type(value) is str and value in kind.__members__:
        return kind[value]
    if kind is float and type(value) is int and float(value) == value:  # a huge int is rounded
        return float(value)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return make(kind, value, kind.__name__)
    if kind is Any or (type(value) is kind and value != MISSING_TEXT):
        return value
    raise TypeError


def _describe_accepted(kind: Any) -> str:
    """Return the values that a type accepts, in words: "a list of whole numbers, or null"."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(kind.__members__)}"
    phrase = type_phrase(kind)
    return f"a {phrase}" if phrase.startswith(("whole", "number", "list", "mapping")) else phrase


def _write_refusal(where: str, key: str, value: Any, kind: Any) -> str:
    """Return the message for a value of the wrong type.

    Args:
        where: The key of the group.
        key: The name of the option.
        value: The value.
        kind: The type that the option has; for an enum, the message suggests a similar name.
    """
    got = f"{where}.{key}: got {quote(value)}"
    if not isinstance(value, str | None):
        got += f" ({type(value).__name__})"
    needs_list = get_origin(kind) is list and not isinstance(value, list)
    for alternative in (kind, *(() if needs_list else get_args(kind))):
        if isinstance(alternative, type) and issubclass(alternative, Enum):
            names = [member.name for member in alternative]
            hint = "".join(
                f": did you mean {where}.{key}={name}?" for name in near(str(value), names, most=1)
            )
            return f"{got}; wanted one of {', '.join(names)}{hint}"
    return f"{got}; wanted {_describe_accepted(kind)}"


def make(target: Callable[..., Any], node: Mapping[str, Any] | None, where: str) -> Any:
    """Call `target` with the options of `node`; a ValueError from it becomes a ConfigError."""
    arguments = bind(target, node, where)
    try:
        return target(**arguments)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def plain(value: Any) -> Any:
    """Return a value as plain JSON: members of enums become text, and dataclasses mappings."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)  # a member of a StrEnum is a str, too
    return value

"""Options given as plain values become the typed arguments of a constructor.

A constructor is the schema of its YAML node: its keyword-only parameters fix the keys and the
types. Nothing is converted into another value, and every error names the key, the value seen, what
was wanted and the way out.
"""

import copy
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, is_dataclass, make_dataclass
from enum import Enum
from functools import lru_cache, partial
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.composition import spelling
from lra.composition.configuration import quote, storable
from lra.errors import ConfigError, near, unknown

GIVEN = frozenset({"self", "site", "config"})
"""Parameters of a mixer or a stack that are no options."""
LONGEST_REASON = 300
"""Characters; OmegaConf spells out every value that it refuses."""


def parameters(target: Callable[..., Any]) -> set[str]:
    """Return the names of the parameters of a class or function; none for one written in C."""
    try:
        return {*inspect.signature(target).parameters}
    except (TypeError, ValueError):
        return set()


@lru_cache(maxsize=1024)
def schema(target: Callable[..., Any]) -> type:
    """Return a dataclass with the keyword parameters of `target` as its fields."""
    if is_dataclass(target):
        hints = get_type_hints(target)
        return make_dataclass(
            "Options",
            [
                (f.name, hints[f.name], field(default=f.default, default_factory=f.default_factory))
                if f.default is not MISSING or f.default_factory is not MISSING
                else (f.name, hints[f.name])
                for f in fields(target)
            ],
            kw_only=True,
        )
    call = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(call)
    except (NameError, TypeError) as error:
        raise ConfigError(
            f"{getattr(target, '__qualname__', target)}: annotations that cannot be read: {error}"
        ) from error
    specification: list[Any] = []
    for name, parameter in inspect.signature(call).parameters.items():
        if name in GIVEN or parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            continue  # given by whoever calls
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or name not in hints:
            raise ConfigError(
                f"{getattr(target, '__qualname__', target)}: parameter {name!r} must be "
                "keyword-only and annotated: the constructor is the schema of its YAML"
            )
        if parameter.default is inspect.Parameter.empty:
            specification.append((name, hints[name]))
        elif isinstance(parameter.default, list | dict):
            default = parameter.default
            specification.append(
                (name, hints[name], field(default_factory=partial(_copy, default)))
            )
        else:
            specification.append((name, hints[name], field(default=parameter.default)))
    return make_dataclass("Options", specification, kw_only=True)


@lru_cache(maxsize=1024)
def defaults(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the options of `target` that have a default, as plain JSON; nothing may change it."""
    values = {}
    for entry in fields(schema(target)):
        if entry.default is not MISSING:
            values[entry.name] = plain(entry.default)
        elif entry.default_factory is not MISSING:
            values[entry.name] = plain(entry.default_factory())
    return MappingProxyType(values)


def _copy(value: Any) -> Any:
    return value.copy()


def bind(target: Callable[..., Any], node: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Return the keyword arguments for `target` that `node` gives, typed and complete.

    Raises ConfigError for an unknown key (with near matches), a missing value, a wrong type, a
    value that another one would have to stand for (1.7 for an int, 3 for text), and for what no
    result can hold: see `lra.composition.configuration.storable`.
    """
    return copy.deepcopy(_bound(target, _Options(dict(node or {})), where))


class _Options:
    """Options that are equal where they are written alike: 1, 1.0, true and '1' are four values."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options, self.text = options, repr(options)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Options) and self.text == other.text


@lru_cache(maxsize=4096)
def _bound(target: Callable[..., Any], options: _Options, where: str) -> dict[str, Any]:
    spec, values = schema(target), options.options
    names = [f.name for f in fields(spec)]
    for key in values:
        if key not in names:
            raise ConfigError(f"{where}: " + unknown("option", str(key), names))
    storable(values, where)
    try:
        typed_values = {f.name: _typed_alone(f, values) for f in fields(spec)}
    except _Unclear:
        typed_values = _typed_together(spec, options, where)
    storable(plain(typed_values), where)  # a default of the user's own class, too
    return typed_values


class _Unclear(Exception):
    """Only OmegaConf can tell what a value becomes, or why it is refused."""


def _typed_alone(option: Any, values: Mapping[str, Any]) -> Any:
    """Return one option typed, without the milliseconds that OmegaConf takes for a class."""
    if option.name in values:
        return _typed(values[option.name], option.type)
    if option.default_factory is not MISSING:
        return _typed(option.default_factory(), option.type)
    return _typed(option.default, option.type)


def _typed(value: Any, kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        kinds = [each for each in get_args(kind) if each is not NoneType]
        if value is None and len(kinds) < len(get_args(kind)):
            return None
        kind = kinds[0] if len(kinds) == 1 else None
    if type(value) is list and get_origin(kind) is list:
        return [_typed(item, *get_args(kind)) for item in value]
    enum = isinstance(kind, type) and issubclass(kind, Enum)
    if type(value) is kind and (enum or kind in (bool, int, float)):
        return value
    if kind is float and type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is str:
        if kind is str and "${" not in value and value != "???":
            return value
        if enum and value in kind.__members__:
            return kind[value]
    raise _Unclear


def _typed_together(spec: type, options: _Options, where: str) -> dict[str, Any]:
    """Return options as OmegaConf types them."""
    values = options.options
    try:
        literal = _escaped(values) if "${" in options.text else values
        merged = OmegaConf.unsafe_merge(OmegaConf.structured(spec), literal)  # both are new
        bound = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key = error.full_key or _refused_key(spec, values)
        top = re.split(r"[.\[]", key, maxsplit=1)[0]
        if top not in values:
            reason = f"{_first_line(error)}; wanted {spelling.accepted(_type_of(spec, top))}"
            raise ConfigError(f"{where}.{key}: {reason}") from error
        raise ConfigError(_refusal(where, top, values[top], _type_of(spec, top))) from error
    typed_values = {each.name: getattr(bound, each.name) for each in fields(spec)}
    for key, value in values.items():
        kind = _type_of(spec, key)
        if not _same(value, typed_values[key]) or not _holds(typed_values[key], kind):
            raise ConfigError(_refusal(where, key, value, kind))
    return typed_values


def _refused_key(spec: type, values: Mapping[str, Any]) -> str:
    """Return which option cannot be merged, where OmegaConf does not say it."""
    for key, value in values.items():
        try:
            OmegaConf.unsafe_merge(OmegaConf.structured(spec), {key: value})
        except OmegaConfBaseException:
            return key
    return "?"


def _escaped(value: Any) -> Any:
    """Return a value whose texts OmegaConf takes as they are: all references are resolved."""
    if isinstance(value, str):
        return spelling.escaped(value)
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    return [_escaped(item) for item in value] if isinstance(value, list | tuple) else value


def _same(seen: Any, typed: Any) -> bool:
    """Return whether typing left a value what it was; 1 may become 1.0, and a name its member."""
    if isinstance(typed, Enum):
        return isinstance(seen, str)
    if is_dataclass(typed) and isinstance(seen, Mapping):
        return all(_same(value, getattr(typed, key)) for key, value in seen.items())
    if isinstance(typed, Mapping):
        return isinstance(seen, Mapping) and all(_same(v, typed[k]) for k, v in seen.items())
    if isinstance(typed, list | tuple):
        return isinstance(seen, list | tuple) and all(map(_same, seen, typed))
    if isinstance(typed, float) and type(seen) is int:
        return seen == typed
    return type(seen) is type(typed) and bool(seen == typed)


def _holds(value: Any, kind: Any) -> bool:
    """Tell whether a list or mapping holds what its annotation says.

    OmegaConf lets any list or mapping stand in the place of a number or of a text inside another.
    """
    inside = get_args(kind)
    if isinstance(value, list) and get_origin(kind) is list:
        return all(_holds(item, inside[0]) for item in value)
    if isinstance(value, Mapping) and get_origin(kind) is dict:
        return all(_holds(item, inside[1]) for item in value.values())
    if isinstance(value, list | Mapping) and get_origin(kind) in (Union, UnionType):
        return any(_holds(value, member) for member in inside)
    scalar = isinstance(kind, type) and kind not in (Any, list, dict)
    return not (scalar and isinstance(value, list | Mapping))


def _first_line(error: OmegaConfBaseException) -> str:
    return str(error.msg or error).splitlines()[0][:LONGEST_REASON]


def _type_of(spec: type, key: str) -> Any:
    return next((entry.type for entry in fields(spec) if entry.name == key), Any)


def _refusal(where: str, key: str, value: Any, kind: Any) -> str:
    """Return the value seen and the value wanted, of a choice with its nearest."""
    seen = f"{where}.{key}: got {quote(value)}"
    if not isinstance(value, str | None):
        seen += f" ({type(value).__name__})"
    of_list = get_origin(kind) is list and not isinstance(value, list)
    for alternative in (kind, *(() if of_list else get_args(kind))):
        if isinstance(alternative, type) and issubclass(alternative, Enum):
            names = [member.name for member in alternative]
            close = near(str(value), names, most=1)
            hint = f": did you mean {where}.{key}={close[0]}?" if close else ""
            return f"{seen}; wanted one of {', '.join(names)}{hint}"
    return f"{seen}; wanted {spelling.accepted(kind)}"


def make(target: Callable[..., Any], node: Mapping[str, Any] | None, where: str) -> Any:
    """Call `target` with what `node` gives; a refused value becomes a ConfigError."""
    arguments = bind(target, node, where)
    try:
        return target(**arguments)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def plain(value: Any) -> Any:
    """Return JSON values: enum members become their names, dataclasses dicts."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str):
        return str(value)
    return value

"""Conversion of options given from Python into the types that a constructor's annotations name.

Users pass plain strings where an option is a StrEnum. A string is no member of the enum: a
comparison with `is` would silently choose another function. So every class that is built from
options is a subclass of `ByName` or decorated with `by_name`: a string becomes the member of this
name, and any other value raises an error. Options from YAML are converted in the same way, after
the check of the schema, which is read from the same annotations.
"""

import difflib
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from lra.conf.bounds import Bound
from lra.conf.short_values import short_repr

C = TypeVar("C", bound=Callable[..., Any])
NUMBERS: Mapping[type, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def by_name(target: C) -> C:
    """Decorate a function or a class: check and convert its keyword arguments by `convert`."""
    if inspect.isclass(target):
        target.__init__ = by_name(target.__init__)  # type: ignore[method-assign]
        return target

    @functools.wraps(target)
    def call(*arguments: Any, **options: Any) -> Any:
        return target(*arguments, **convert(target, options))

    return cast(C, call)


class ByName:
    """A base class; constructors of its subclasses check and convert their options."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Decorate the constructor that a subclass defines."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):  # an inherited constructor is decorated already
            by_name(cls)


def rebind(factory: C) -> C:
    """Return `factory`; if it is a `functools.partial`, its options are checked and converted."""
    if not isinstance(factory, functools.partial):
        return factory
    options = convert(factory.func, factory.keywords)
    return cast(C, functools.partial(factory.func, *factory.args, **options))


def convert(target: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments `options`, converted to the annotated types of `target`.

    Raises:
        ValueError: The annotation forbids a value; the message names the allowed ones.
    """
    hints = _hints(target.__init__ if inspect.isclass(target) else target)
    return {
        name: _converted(name, value, hints[name]) if name in hints else value
        for name, value in options.items()
    }


@functools.cache
def _hints(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the type annotations of `target` by parameter name."""
    try:
        return get_type_hints(target, include_extras=True)
    except NameError:  # a user's class may name types that only type checkers import
        return {}


def _converted(name: str, value: Any, hint: Any, or_else: str = "") -> Any:
    """Return `value` converted to the annotation `hint`; `or_else` ends a message about a bound."""
    if get_origin(hint) in {Union, types.UnionType}:
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        optional = len(kinds) < len(get_args(hint))
        if len(kinds) > 1 or (value is None and optional):
            return value  # of several types, none is preferred
        hint, or_else = kinds[0], ", or null" if optional else ""
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        value = _converted(name, value, kind)
        for note in notes:
            if isinstance(note, Bound) and not note.holds(value):
                raise ValueError(f"{name} must {note.words}{or_else}: got {value}")
        return value
    if get_origin(hint) is list:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{name}: got {short_repr(value)}; wanted a list")
        return [_converted(f"{name}[{i}]", item, *get_args(hint)) for i, item in enumerate(value)]
    if inspect.isclass(hint) and issubclass(hint, StrEnum):
        return _choice(name, value, hint)
    if hint is bool and not isinstance(value, bool):
        raise ValueError(f"{name}: got {short_repr(value)}; wanted True or False")
    if hint in NUMBERS:
        kind, wanted = NUMBERS[hint]
        # In Python, True is an int; a user who types it means no number.
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ValueError(f"{name}: got {short_repr(value)}; wanted {wanted}")
        return hint(value)
    return value


def _choice(name: str, value: Any, kind: type[StrEnum]) -> StrEnum:
    """Return the member of `kind` that `value` names; the error suggests the closest name."""
    known = [choice.value for choice in kind]
    if isinstance(value, str) and value in known:
        return kind(value)
    message = f"{name}: got {short_repr(value)}; wanted one of {', '.join(known)}"
    for suggestion in difflib.get_close_matches(str(value).lower(), known, n=1):
        message += f"; did you mean {suggestion}?"
    raise ValueError(message)

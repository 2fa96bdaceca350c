"""Make the public Python functions raise the same short errors as the command line."""

import re
from collections.abc import Callable
from functools import partial, wraps
from importlib import invalidate_caches
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from lra.cli import is_actionable, message, shows_tracebacks
from lra.composition.configuration import GROUPS
from lra.errors import ConfigError, unknown
from lra.runners.store import BadStore
from lra.tasks.errors import BadData

P = ParamSpec("P")
T = TypeVar("T")
PUBLIC = (ConfigError, BadData, BadStore, OSError, RuntimeError)
"""Errors that reach the caller unchanged; `NotPrepared` is an `OSError`."""

TYPED = re.compile(
    r"`[^`]*`|\blra [a-z]+ (?:(?!\. )[^;,)])*"  # a whole command is matched, to leave it unchanged
    r"|--config-dir DIR"
    rf"|(?<![\w.+])(?:(\+\w+)|({'|'.join(GROUPS)})(?:\.(\w[\w.]*))?)=((?>[\w.+-]*\w|…))(?!,\w|\()"
)
"""Matches what a message says to type in a shell: a flag, or KEY=VALUE with a single value."""
KEYWORDS = {"--config-dir DIR": 'config_dir="DIR"'}
VALUES = {"null": "None", "true": "True", "false": "False", "…": "…"}
OWN = {"task": ("task", ""), "model": ("model", "mixer.")}
"""For `lra.task` and `lra.model`: the group and the prefix of the options that are keywords."""


def in_python(text: str, function: str) -> str:
    """Return the message `text` with shell arguments rewritten as keywords of `lra.FUNCTION`."""
    own_group, prefix = OWN.get(function, ("", ""))
    return TYPED.sub(partial(_write_keyword, own_group, prefix), text)


def _write_keyword(own_group: str, prefix: str, match: re.Match[str]) -> str:
    """Return a match of `TYPED` as a Python keyword, for example `optim={"steps": 50}`.

    Args:
        own_group: The group whose options are keywords of the function; "" if there is none.
        prefix: What precedes the name of a keyword in the key of the option.
        match: For example of `optim.steps=50`.
    """
    preset, group, key, value = match.groups()
    if value is None:
        return KEYWORDS.get(match[0], match[0])
    number = re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", value)
    shown = VALUES.get(value, value if number else f'"{value}"')
    if preset:
        return f'**{{"{preset}": {shown}}}'
    if key is None:
        return f"{group}={shown}"
    if group == own_group and key.startswith(prefix) and "." not in key.removeprefix(prefix):
        return f"{key.removeprefix(prefix)}={shown}"
    return f'{group}={{"{key}": {shown}}}'


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Return `function` with short errors for its caller.

    An error that the caller can mend has no traceback through lra and Hydra, and is a `ConfigError`
    unless its type is in `PUBLIC`. With LRA_DEBUG=1 it keeps its traceback. A bug keeps its
    traceback and its type.
    """
    parameters = signature(function).parameters
    takes_any = any(item.kind is Parameter.VAR_KEYWORD for item in parameters.values())

    @wraps(function)
    def call_plainly(*args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in this way."""
        __tracebackhide__ = True  # IPython and pytest hide this frame
        try:
            invalidate_caches()  # a notebook may have written a package just now
            for name in () if takes_any else [key for key in kwargs if key not in parameters]:
                kind = f"argument of lra.{function.__name__}"
                raise ConfigError(unknown(kind, name, parameters))
            return function(*args, **kwargs)
        except Exception as error:
            if not is_actionable(error):
                raise
            plain = error if isinstance(error, PUBLIC) else ConfigError(message(error))
            if isinstance(plain, ConfigError):
                plain.args = (in_python(str(plain), function.__name__),)
            if shows_tracebacks():
                if plain is error:
                    raise
                raise plain from error
        raise plain.with_traceback(None) from None

    return call_plainly

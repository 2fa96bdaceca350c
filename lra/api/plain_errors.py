"""How the functions that Python calls begin and fail: as verbs of the command line do."""

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
"""Errors that reach the caller as they are; `NotPrepared` is an `OSError`."""

TYPED = re.compile(
    r"`[^`]*`|\blra [a-z]+ (?:(?!\. )[^;,)])*"  # a command stays one
    r"|--config-dir DIR"
    rf"|(?<![\w.+])(?:(\+\w+)|({'|'.join(GROUPS)})(?:\.(\w[\w.]*))?)=((?>[\w.+-]*\w|…))(?!,\w|\()"
)
"""What a message says to type in a shell: flags, and words with one plain value."""
KEYWORDS = {"--config-dir DIR": 'config_dir="DIR"'}
VALUES = {"null": "None", "true": "True", "false": "False", "…": "…"}
OWN = {"task": ("task", ""), "model": ("model", "mixer.")}
"""Functions whose keywords are the keys of a part."""


def in_python(text: str, function: str) -> str:
    """Return a message with keywords of a function in the place of words of the shell."""
    return TYPED.sub(partial(_keyword, *OWN.get(function, ("", ""))), text)


def _keyword(own: str, part: str, match: re.Match[str]) -> str:
    preset, group, key, value = match.groups()
    if value is None:
        return KEYWORDS.get(match[0], match[0])
    number = re.fullmatch(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", value)
    shown = VALUES.get(value, value if number else f'"{value}"')
    if preset:
        return f'**{{"{preset}": {shown}}}'
    if key is None:
        return f"{group}={shown}"
    if group == own and key.startswith(part) and "." not in key.removeprefix(part):
        return f"{key.removeprefix(part)}={shown}"
    return f'{group}={{"{key}": {shown}}}'


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function see packages of the current folder, and raise in one sentence.

    What its caller can mend comes without the frames in between, Hydra's among them, and as
    `ConfigError` where it is none of `PUBLIC`. LRA_DEBUG=1 keeps the frames; a bug, of ours or of a
    package, keeps its type, too.
    """
    known = signature(function).parameters
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in known.values())

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for IPython and pytest
        try:
            invalidate_caches()  # a notebook may have written a package just now
            for name in () if takes_any else [each for each in kwargs if each not in known]:
                raise ConfigError(unknown(f"argument of lra.{function.__name__}", name, known))
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

    return called

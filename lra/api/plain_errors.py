"""How the functions that Python calls begin and fail: as verbs of the command line do."""

from collections.abc import Callable
from functools import wraps
from importlib import invalidate_caches
from typing import ParamSpec, TypeVar

from lra.cli import is_actionable, message, shows_tracebacks
from lra.errors import ConfigError
from lra.runners.store import BadStore
from lra.tasks.errors import BadData

P = ParamSpec("P")
T = TypeVar("T")
PUBLIC = (ConfigError, BadData, BadStore, OSError, RuntimeError)
"""Errors that reach the caller as they are; `NotPrepared` is an `OSError`."""


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function see packages of the current folder, and raise in one sentence.

    What its caller can mend comes without the frames in between, Hydra's among them, and as
    `ConfigError` where it is none of `PUBLIC`. LRA_DEBUG=1 keeps the frames; a bug, of ours or of a
    package, keeps its type, too.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for IPython and pytest
        try:
            invalidate_caches()  # a notebook may have written a package just now
            return function(*args, **kwargs)
        except Exception as error:
            if not is_actionable(error):
                raise
            plain = error if isinstance(error, PUBLIC) else ConfigError(message(error))
            if shows_tracebacks():
                if plain is error:
                    raise
                raise plain from error
        raise plain.with_traceback(None) from None

    return called

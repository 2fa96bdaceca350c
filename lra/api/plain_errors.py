"""How the functions that Python calls begin and fail: as verbs of the command line do."""

from collections.abc import Callable
from functools import wraps
from importlib import invalidate_caches
from typing import ParamSpec, TypeVar

from lra.cli import is_actionable, message, shows_tracebacks
from lra.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")


def plainly(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function see packages of the current folder, and raise in one sentence.

    What its caller can mend comes without the frames in between, Hydra's among them. LRA_DEBUG=1
    keeps them; a bug, of ours or of a package, keeps them always.
    """

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for IPython and pytest
        try:
            invalidate_caches()  # a notebook may have written a package just now
            return function(*args, **kwargs)
        except Exception as error:
            if shows_tracebacks() or not is_actionable(error):
                raise
            ours = type(error).__module__.partition(".")[0] in ("lra", "builtins")
            plain = error if ours else ConfigError(message(error))
        raise plain.with_traceback(None) from None

    return called

"""The door of an operation, through which a public kernel may compute it instead of our own form.

An operation with `@door` runs as it is written unless a session is open
(`lra.models.kernels.session`); then the session decides, call by call.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Operation = Callable[..., Any]


class Computes(Protocol):
    """What decides which form computes a call: see `lra.models.kernels.session.Session`."""

    def compute(self, own: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the operation `own` returns for the arguments."""
        ...

    def labels(self) -> dict[str, str]:
        """Return labels that say which form computed each operation."""
        ...

    def check_used(self) -> None:
        """Raise Unsupported if kernels are required and the model has called none."""
        ...


_session: Computes | None = None


def door(own: Callable[P, R]) -> Callable[P, R]:
    """Let an open session choose who computes a call of the operation `own`."""

    @wraps(own)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if _session is None:
            return own(*args, **kwargs)
        result: R = _session.compute(own, args, kwargs)
        return result

    return call


def set_session(session: Computes | None) -> Computes | None:
    """Let `session` decide from now on in this process; return the session before it."""
    global _session
    before, _session = _session, session
    return before


def session_is_open() -> bool:
    """Tell whether public kernels may compute operations now."""
    return _session is not None


def kernel_labels() -> dict[str, str]:
    """Return labels that say which form computed each operation so far; {} without a session."""
    return {} if _session is None else _session.labels()


def check_used() -> None:
    """Raise Unsupported if kernels are required, but the passes so far have called none."""
    if _session is not None:
        _session.check_used()


@contextmanager
def own_forms() -> Iterator[None]:
    """Let our own forms compute all operations in the `with` block, in all threads."""
    before = set_session(None)
    try:
        yield
    finally:
        set_session(before)

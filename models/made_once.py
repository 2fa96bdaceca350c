"""A cache for the facts of one pass, which layers share."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar, cast

T = TypeVar("T")


class MadeOnce:
    """A cache for one pass: what the first layer computes from the masks, later layers reuse.

    A value is looked up by its name and by the identity of the tensors that it was computed from,
    so a layout with other tensors gets another value.
    """

    def __init__(self) -> None:
        """Start empty; an entry has the tensors that decide a value, and the value."""
        self._cached: dict[tuple[Hashable, ...], tuple[Sequence[object], Any]] = {}

    def of(self, name: Hashable, made_of: Sequence[object], make: Callable[[], T]) -> T:
        """Return the cached value for `name` and `made_of`; the first call computes it by `make`.

        Args:
            name: Name of the value, with every number that decides it.
            made_of: The tensors that decide it.
            make: Computes the value, whose tensors must not need gradients.
        """
        key = (name, *map(id, made_of))
        if key not in self._cached:
            # The cache also stores `made_of`: a freed tensor's id could be reused by another.
            self._cached[key] = made_of, make()
        _, value = self._cached[key]
        return cast(T, value)

"""What follows from objects that never change is found once. Torch-free."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Found = TypeVar("Found")


class Memo:
    """Values by the objects that they follow from: those very objects, and not their equals.

    The runs of a sweep share most parts of their configurations; to tell that two parts are one
    takes no time, to tell that they are equal as long as most of what is done with them. Objects
    and values stay alive as long as this does: one for each sweep.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[Hashable, ...], tuple[tuple[object, ...], Any]] = {}

    def of(self, what: Hashable, objects: tuple[object, ...], find: Callable[[], Found]) -> Found:
        """Return what `find` returned when it was asked for the first time; an error is not kept.

        Args:
            what: tells values apart that follow from the same objects.
            objects: all that the value follows from, beside `what`; nothing may change them.
            find: finds it.
        """
        key = (what, *map(id, objects))
        known = self._found.get(key)
        if known is None:
            known = self._found[key] = (objects, find())
        found: Found = known[1]
        return found

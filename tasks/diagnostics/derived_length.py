"""The base of generated tasks whose rows are as long as their other options make them."""

from dataclasses import dataclass, field
from typing import ClassVar

from lra.tasks.diagnostics.base import DiagnosticTask


@dataclass(kw_only=True, eq=False)
class DerivedLengthTask(DiagnosticTask):
    """A base class of tasks without options for lengths; rows are padded to the longest one.

    The `__post_init__` of a subclass sets `length`, and then calls `generated_as`.
    """

    padded: ClassVar[bool] = True

    length: int = field(init=False)
    min_length: int | None = field(init=False, default=None)
    test_length: int | None = field(init=False, default=None)
    test_lengths: list[int] | None = field(init=False, default=None)

    def stretched(self, factor: float) -> dict[str, object]:
        """Return no options for rows of the same length.

        Raises:
            ValueError: Rows would have another length.
        """
        if factor == 1:
            return {}
        raise ValueError(
            f"task={self.name} has no rows that are {factor:g} times as long, because lengths "
            f"follow from its other options: {', '.join(f'task.{name}' for name in self.options)}"
        )

"""A cell of a stored plan as what runs it wants it."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from lra.cluster.plan import StoredPlan
from lra.composition.compose import typed
from lra.composition.run import Run
from lra.sweep.planned import Planned
from runners.records import Cell

if TYPE_CHECKING:
    from tasks.task import Task


class StoredPlanned(Planned):
    """A cell whose run is built from its configuration on first use."""

    __slots__ = ("_make", "_run")

    def __init__(
        self, cell: Cell, trainings: Mapping[str, Cell], make: Callable[[Cell], Run]
    ) -> None:
        self.cell, self.trainings = cell, trainings
        self.again, self.no_data = False, None
        self._make = make
        self._run: Run | None = None

    @property
    def run(self) -> Run:  # type: ignore[override]  # a field of the base, read alone
        """The run that the cell belongs to."""
        if self._run is None:
            self._run = self._make(self.cell)
        return self._run


def planned_at(
    plan: StoredPlan, place: int, tasks: "dict[str, Task] | None" = None
) -> StoredPlanned:
    """Return the cell at a place of a plan's index.

    Args:
        plan: the plan.
        place: of the cell.
        tasks: those built before: see `lra.composition.compose.typed`.
    """
    names, sources = plan.record(place)["starts_from"], plan.entries[place].trainings
    trainings = {name: plan.cell(source) for name, source in zip(names, sources, strict=True)}
    return StoredPlanned(plan.cell(place), trainings, lambda cell: typed(cell.config, tasks))

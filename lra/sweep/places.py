"""Where the cells of a sweep run on this machine, and whether there is a place for each."""

from collections.abc import Sequence

from lra.composition.run import Run
from lra.errors import ConfigError
from lra.runners.isolation.places import Places
from lra.runners.measurement.training_places import places_of
from lra.sweep.sweep import PlannedCell


def processes(run: Run) -> int:
    """Return how many processes a cell of the run has, each with a device or cores of its own."""
    return run.hardware.processes


def kind_of(planned: PlannedCell) -> tuple[object, ...]:
    """Return what cells that share places have in common: runner, device, size of a place."""
    hardware = planned.run.hardware
    size = () if planned.run.runner.timed else _size(planned.run)
    return (planned.cell.columns["runner"], hardware.device, *size)


def _size(run: Run) -> tuple[int, int]:
    return run.hardware.training_threads, run.hardware.training_processes


def places_for(group: Sequence[PlannedCell]) -> Places:
    """Return the places of cells of one kind: see `kind_of`. Raises ConfigError for too few."""
    first = group[0].run
    widest = max(processes(planned.run) for planned in group)
    try:
        return places_of(
            first.hardware, timed=first.runner.timed, processes=widest, cells=len(group)
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_places(planned: Sequence[PlannedCell]) -> None:
    """Refuse cells that need more devices than this machine has. Raises ConfigError."""
    kinds: dict[tuple[object, ...], list[PlannedCell]] = {}
    for item in planned:
        kinds.setdefault(kind_of(item), []).append(item)
    for group in kinds.values():
        places_for(group)

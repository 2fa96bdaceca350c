"""Finds the devices or cores of this machine on which the cells of a sweep run."""

from collections.abc import Sequence

from lra.composition.run import Run
from lra.errors import ConfigError
from lra.runners.isolation.places import Places
from lra.runners.measurement.training_places import places_of
from lra.sweep.sweep import PlannedCell


def processes(run: Run) -> int:
    """Return how many processes a cell of the run has, each on a separate device or cores."""
    return run.hardware.processes


def kind_of(planned: PlannedCell) -> tuple[object, ...]:
    """Return a key that is equal for cells that can share places (devices, or sets of cores).

    It holds the runner, the kind of device and, unless cells are timed, threads and processes.
    """
    hardware = planned.run.hardware
    size = () if planned.run.runner.timed else _size(planned.run)
    return (planned.cell.columns["runner"], hardware.device, *size)


def _size(run: Run) -> tuple[int, int]:
    """Return the CPU threads and the processes of a cell that is not timed."""
    return run.hardware.training_threads, run.hardware.training_processes


def places_for(group: Sequence[PlannedCell]) -> Places:
    """Return the places for cells of one kind (see `kind_of`). Raises ConfigError for too few."""
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

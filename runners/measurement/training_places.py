"""Where the cells of a profile run on this machine: its GPUs, or separate cores. Torch-free."""

import os
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from lra.conf.processors import processor_words, within_quota
from lra.runners.isolation.places import DevicePlace, Places, core_places, seats
from lra.runners.measurement.gpus import Gpu, gpus
from lra.runners.measurement.hardware import NO_GPU, Device, HardwareProfile

MANY = 1_000_000
"""Cells of a sweep that uses what there is."""
_TOPOLOGY = Path("/sys/devices/system/cpu")


def places_of(
    hardware: HardwareProfile, *, timed: bool, processes: int = 1, cells: int = MANY
) -> Places:
    """Return the places of a sweep's cells.

    Args:
        hardware: their profile.
        timed: whether they read the clock, so that each runs alone.
        processes: of the widest cell.
        cells: how many there are. A sweep that leaves cores free binds no cell to cores: commands
            that run at the same time would all begin with the same core.

    Raises:
        ValueError: There are fewer devices than a cell needs.
    """
    number = 0 if timed else hardware.training_processes * processes
    if hardware.device is Device.cuda:
        devices = on_gpus(gpus(), places=number)
    elif timed:
        devices = list(seats(processes))
    else:
        cores, threads = usable_cores(), hardware.training_threads
        number = number or max(1, within_quota(len(cores)) // threads)
        devices = on_cores(cores, threads, places=number)
        if cells * processes < len(devices):
            devices = list(seats(len(devices)))
    places = Places(devices, alone=timed)
    if processes > places.most:
        raise ValueError(_too_few(hardware, processes, places.most))
    return places


def shared_places(
    hardware: HardwareProfile,
    *,
    timed: bool,
    processes: int,
    cells: int | None,
    share: tuple[int, int],
) -> Places:
    """Return the places of one of several workers on this machine.

    Args:
        hardware: profile of its cells.
        timed: whether they read the clock: then the worker has the machine alone.
        processes: of a cell.
        cells: at once; None: as many as the profile says.
        share: the worker's number, from 0, and how many workers there are. GPUs are dealt out; on
            a processor the system deals.

    Raises:
        ValueError: There are fewer devices than a cell needs.
    """
    whole = places_of(hardware, timed=timed, processes=processes, cells=0)
    if timed:
        return whole
    if hardware.device is not Device.cuda:
        return Places(seats(len(whole.all) if cells is None else cells * processes))
    number, workers = share
    block = max(processes, len(whole.all) // workers)
    block = block if cells is None else min(block, cells * processes)
    first = number * block
    return Places([whole.all[(first + at) % len(whole.all)] for at in range(block)])


def on_gpus(seen: Sequence[Gpu], *, places: int = 0) -> list[DevicePlace]:
    """Return places, on each GPU in turn.

    Rows name the kind of the first GPU; those of another kind are left out.

    Args:
        seen: those that there are.
        places: how many; 0: one for each GPU.

    Raises:
        ValueError: There is none.
    """
    alike = [gpu for gpu in seen if gpu.name == seen[0].name]
    if not alike:
        raise ValueError(NO_GPU)
    chosen = islice(cycle(alike), places or len(alike))
    return [DevicePlace(gpu=gpu.visible, identity=gpu.uuid) for gpu in chosen]


def on_cores(cores: Sequence[int], per_place: int, *, places: int = 0) -> list[DevicePlace]:
    """Return places on a processor, each with separate cores.

    Where places leave cores free, or need more than there are, none is bound to cores: a second
    program that counted in the same way would crowd onto the same cores.

    Args:
        cores: those that this process may use, neighbours together.
        per_place: cores of a place.
        places: how many; 0: as many as fit, and at least one.
    """
    number = places or max(1, len(cores) // per_place)
    fills = 0 <= len(cores) - number * per_place < per_place
    return core_places(cores, per_place) if fills else list(seats(number))


def usable_cores() -> list[int]:
    """Return the cores that this process may use; those that share a memory or a core together."""
    return sorted(os.sched_getaffinity(0), key=_position)


def _position(core: int) -> tuple[int, int, int]:
    """Return package, physical core and number of a core; they order as they are near."""
    folder = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        package, physical = (
            int((folder / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return 0, core, core
    return package, physical, core


def _too_few(hardware: HardwareProfile, processes: int, most: int) -> str:
    if hardware.device is Device.cuda:
        return (
            f"hardware.processes: got {processes}; this machine has {most} GPU"
            f"{'' if most == 1 else 's'} for them; wanted at most {most}"
        )
    there = processor_words(len(usable_cores()))
    return (
        f"hardware.processes: got {processes}, with "
        f"hardware.training_threads={hardware.training_threads} each; this machine gives lra "
        f"{there}, which are enough for {most}; wanted at most {most}, or "
        "hardware.training_processes=1, with which all of them share the cores"
    )

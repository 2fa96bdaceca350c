"""The places where runs execute on this machine: its GPUs, or separate cores. Torch-free."""

import os
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from lra.conf.processors import processor_words, within_quota
from lra.runners.isolation.places import DevicePlace, Places, core_places, seats
from lra.runners.measurement.gpus import Gpu, gpus
from lra.runners.measurement.hardware import NO_GPU, Device, HardwareProfile

MANY = 1_000_000
"""A number of runs that is large enough to fill any machine."""
_TOPOLOGY = Path("/sys/devices/system/cpu")


def places_of(
    hardware: HardwareProfile, *, timed: bool, processes: int = 1, cells: int = MANY
) -> Places:
    """Return the places for the runs of a sweep.

    Args:
        hardware: the hardware profile of the runs.
        timed: whether the runs measure time, so that each runs alone.
        processes: largest number of processes of a run.
        cells: number of runs. If they leave cores free, runs are not bound to cores, because
            another command at the same time would use the same cores.

    Raises:
        ValueError: There are fewer devices than a run needs.
    """
    number = 0 if timed else hardware.training_processes * processes  # 0: as many as fit
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
        raise ValueError(_explain_too_few(hardware, processes, places.most))
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
        hardware: the hardware profile of the runs.
        timed: whether the runs measure time; then the worker has the whole machine.
        processes: number of processes of a run.
        cells: number of runs at the same time; None: as many as the profile says.
        share: number of the worker, from 0, and number of all workers. GPUs are divided among
            them; the operating system divides cores.

    Raises:
        ValueError: There are fewer devices than a run needs.
    """
    # 0 runs leave cores free, so no place is bound to cores, which other workers would use, too.
    whole = places_of(hardware, timed=timed, processes=processes, cells=0)
    if timed:
        return whole
    if hardware.device is not Device.cuda:
        return Places(seats(len(whole.all) if cells is None else cells * processes))
    number, workers = share
    block = max(processes, len(whole.all) // workers)
    block = block if cells is None else min(block, cells * processes)
    first = number * block  # beyond the last GPU, workers share GPUs from the first one on
    return Places([whole.all[(first + at) % len(whole.all)] for at in range(block)])


def on_gpus(seen: Sequence[Gpu], *, places: int = 0) -> list[DevicePlace]:
    """Return places on GPUs, which are used in turn.

    Only GPUs of the same kind as the first one are used, because rows name one kind.

    Args:
        seen: all GPUs.
        places: number of places; 0: one for each GPU.

    Raises:
        ValueError: There is no GPU.
    """
    alike = [gpu for gpu in seen if gpu.name == seen[0].name]
    if not alike:
        raise ValueError(NO_GPU)
    chosen = islice(cycle(alike), places or len(alike))
    return [DevicePlace(gpu=gpu.visible, identity=gpu.uuid) for gpu in chosen]


def on_cores(cores: Sequence[int], per_place: int, *, places: int = 0) -> list[DevicePlace]:
    """Return places on a processor, each with separate cores.

    If the places leave cores free, or need more cores than there are, no place is bound to cores,
    because another command at the same time would use the same cores.

    Args:
        cores: the cores that this process may use; neighbours are next to each other.
        per_place: number of cores of a place.
        places: number of places; 0: as many as fit, and at least one.
    """
    number = places or max(1, len(cores) // per_place)
    fills = 0 <= len(cores) - number * per_place < per_place
    return core_places(cores, per_place) if fills else list(seats(number))


def usable_cores() -> list[int]:
    """Return the cores that this process may use; cores of one package are next to each other."""
    return sorted(os.sched_getaffinity(0), key=_sort_key)


def _sort_key(core: int) -> tuple[int, int, int]:
    """Return package, physical core and number of a core, by which neighbours sort together."""
    folder = _TOPOLOGY / f"cpu{core}" / "topology"
    try:
        package, physical = (
            int((folder / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):
        return 0, core, core  # an unknown topology: cores are sorted by their numbers
    return package, physical, core


def _explain_too_few(hardware: HardwareProfile, processes: int, most: int) -> str:
    """Return the message for a run with more processes than the machine has places (`most`)."""
    if hardware.device is Device.cuda:
        return (
            f"hardware.processes: got {processes}; wanted at most {most}, because this machine has "
            f"{most} GPU{'' if most == 1 else 's'}"
        )
    cores = processor_words(len(usable_cores()))
    return (
        f"hardware.processes: got {processes}; wanted at most {most}, because lra may use {cores} "
        f"and each process needs hardware.training_threads={hardware.training_threads}; with "
        "hardware.training_processes=1, all processes share the cores"
    )

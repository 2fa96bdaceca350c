"""The GPUs that PyTorch finds on this machine, without a CUDA context in this process.

A child process asks PyTorch and ends. It inherits CUDA_VISIBLE_DEVICES, which a person, SLURM or a
container may have set to limit the GPUs. Torch-free.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from lra.runners.isolation import isolate
from lra.runners.records import Status

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVERS = ("nvidia*", "dxg", "kfd", "nvmap", "nvgpu")
"""Names of GPU drivers in /dev: NVIDIA, WSL, AMD, and small boards of NVIDIA."""
_LONGEST_S = 120.0  # a child that asks for longer is stopped


class Gpu(NamedTuple):
    """One device of CUDA: a card, or a part of a card (MIG)."""

    visible: str
    """Value of the variable VISIBLE for a process that uses only this device."""
    name: str
    uuid: str
    """UUID from the driver; "" if it gives none."""


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that PyTorch finds, in the order of CUDA; () if there are none."""
    return _find_gpus(os.environ.get(VISIBLE))


@lru_cache
def _find_gpus(visible: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs as `gpus` does; the result is cached for each value `visible` of VISIBLE."""
    if not any(True for name in _DRIVERS for _ in Path("/dev").glob(name)):
        return ()  # without a driver, no child needs to look
    messages: list[Any] = []
    ending = isolate.run(_look, None, seconds=_LONGEST_S, on_message=messages.append)
    if ending.status is not Status.ok or not messages:
        raise ValueError(
            f"lra could not count the GPUs of this machine: {ending.reason or ending.status}; "
            "`lra doctor` shows more, and hardware=cpu runs without a GPU"
        )
    return name_devices(messages[0], visible)


def name_devices(seen: list[tuple[str, str]], visible: str | None) -> tuple[Gpu, ...]:
    """Return the devices, each with the value of VISIBLE that gives it to one process alone.

    Args:
        seen: name and UUID of each device that PyTorch finds, in order.
        visible: value of VISIBLE; None: it is not set. CUDA ignores its entries from the first
            invalid one on, so only as many entries are used as devices were found. Of several
            parts of cards (MIG) CUDA shows only the first, so all their entries are used.
    """
    if visible is None:
        return tuple(Gpu(str(number), *device) for number, device in enumerate(seen))
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if seen and entries and all(entry.startswith("MIG-") for entry in entries):
        return tuple(Gpu(entry, seen[0][0], entry) for entry in dict.fromkeys(entries))
    return tuple(Gpu(entry, *device) for entry, device in zip(entries, seen, strict=False))


def _look(_: None, send: Callable[[object], None]) -> None:
    """Send the name and the UUID of each GPU; this runs in the child process."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    send([(gpu.name, str(getattr(gpu, "uuid", ""))) for gpu in properties])

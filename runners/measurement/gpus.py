"""The GPUs that a process started here would see, without touching one in this process.

A child looks, as PyTorch sees them, and ends with its CUDA context. It inherits what narrows the
view, CUDA_VISIBLE_DEVICES above all, whoever set it: a person, SLURM, a container. Torch-free.
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
"""Names in /dev of the drivers: NVIDIA's, those of WSL and of AMD, and of NVIDIA's small boards."""
_LONGEST_S = 120.0


class Gpu(NamedTuple):
    """One device as CUDA counts them: a card, or a part of one (MIG)."""

    visible: str
    """What VISIBLE says to a process that has it alone."""
    name: str
    uuid: str
    """As the driver says it; "" where it says none."""


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of a process started now, in CUDA's order; none where PyTorch sees none."""
    return _gpus(os.environ.get(VISIBLE))


@lru_cache
def _gpus(visible: str | None) -> tuple[Gpu, ...]:
    if not any(True for name in _DRIVERS for _ in Path("/dev").glob(name)):
        return ()
    messages: list[Any] = []
    ending = isolate.run(_look, None, seconds=_LONGEST_S, on_message=messages.append)
    if ending.status is not Status.ok or not messages:
        raise ValueError(
            f"the GPUs of this machine could not be counted: {ending.reason or ending.status}; "
            "`lra doctor` shows what is found, and hardware=cpu runs without a GPU"
        )
    return name_devices(messages[0], visible)


def name_devices(seen: list[tuple[str, str]], visible: str | None) -> tuple[Gpu, ...]:
    """Return what each device is called where one process is to have it alone.

    Args:
        seen: name and UUID of those that a process sees, in order.
        visible: what VISIBLE says; None: nothing. A list counts as far as its devices exist, so as
            many of its entries are real as devices are seen. Of parts of cards (MIG) a process
            sees the first alone, so there every entry counts.
    """
    if visible is None:
        return tuple(Gpu(str(number), *device) for number, device in enumerate(seen))
    entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    if seen and entries and all(entry.startswith("MIG-") for entry in entries):
        return tuple(Gpu(entry, seen[0][0], entry) for entry in dict.fromkeys(entries))
    return tuple(Gpu(entry, *device) for entry, device in zip(entries, seen, strict=False))


def _look(_: None, send: Callable[[object], None]) -> None:
    """Child: send the name and the UUID of each GPU."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    properties = [torch.cuda.get_device_properties(number) for number in range(count)]
    send([(gpu.name, str(getattr(gpu, "uuid", ""))) for gpu in properties])

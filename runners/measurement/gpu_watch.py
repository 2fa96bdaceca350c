"""Other processes on a GPU, and what holds its clock down, as NVIDIA's management library tells."""

import importlib
import os
from typing import Any

import torch

HELD_BACK = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of `nvmlDeviceGetCurrentClocksThrottleReasons` that make the same work slower."""


class GpuWatch:
    """One GPU. Which numbers it does not give is up to its driver: those are None or empty.

    Args:
        nvml: the module `pynvml`, initialised.
        handle: of the device.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def _asked(self, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(self._handle, *arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    def others(self) -> int | None:
        """Return how many other processes compute on the GPU; None where it does not say.

        In a container process numbers are another machine's: then one of them is ours.
        """
        found = self._asked("nvmlDeviceGetComputeRunningProcesses")
        if found is None:
            return None
        numbers = {process.pid for process in found}
        return max(0, len(numbers) - 1) if os.getpid() not in numbers else len(numbers) - 1

    def clock_hertz(self) -> float | None:
        """Return the clock of the multiprocessors now."""
        megahertz = self._asked("nvmlDeviceGetClockInfo", getattr(self._nvml, "NVML_CLOCK_SM", 1))
        return None if megahertz is None else megahertz * 1e6

    def disturbed(self) -> str:
        """Say what disturbs the GPU now; "" for nothing that is known."""
        if self.others():
            return "other processes on the GPU"
        bits = self._asked("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        named = [name for bit, name in HELD_BACK.items() if bits & bit]
        return f"GPU clock held down: {named[0]}" if named else ""


def gpu_watch(device: torch.device) -> GpuWatch | None:
    """Return the watch of a device; None without the library `nvidia-ml-py` or its driver."""
    try:
        nvml: Any = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        # NVML counts all GPUs of the machine, PyTorch those that CUDA_VISIBLE_DEVICES shows
        identity = torch.cuda.get_device_properties(device).uuid
        return GpuWatch(nvml, nvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity}"))
    except (nvml.NVMLError, AttributeError, RuntimeError):
        return None

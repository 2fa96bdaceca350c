"""The rates with which `lra plan` estimates times: measured ones, or typical ones of a profile."""

from typing import NamedTuple

from lra.runners.measurement.effort import WEIGHTS, Effort, seconds
from lra.runners.measurement.hardware import Device, HardwareProfile, available_bytes
from lra.runners.measurement.rates import Rates, stored_rates

ALL_AS_IS = Effort(*[1.0] * len(Effort._fields))
"""Weights for typical rates of GPUs, which already are those of operators inside models."""
ANY_GPU = "laptop_gpu"
"""Name of the profile for GPUs without a profile."""


class MachineRates(NamedTuple):
    """The rates of a machine and how to estimate times with them."""

    rates: Rates
    weights: Effort
    ahead: bool
    """See `lra.runners.measurement.effort.seconds`."""
    memory_bytes: float | None
    """Memory that all runs at the same time may use; None: unknown."""
    measured: bool
    """True: the rates were measured on this machine; False: they are typical ones."""

    def seconds(self, work: Effort) -> float:
        """Return the estimated seconds of a pass."""
        return seconds(work, self.rates, ahead=self.ahead, weights=self.weights)


def machine_of(hardware: HardwareProfile, threads: int) -> MachineRates | None:
    """Return the rates of the machine that a profile describes; None if they are unknown.

    Args:
        hardware: the hardware profile.
        threads: number of threads of a CPU.
    """
    gpu = hardware.device is Device.cuda
    typical = hardware.typical
    is_this_machine = not gpu or _has_gpu(hardware)
    memory = typical.get("memory_bytes") or (None if gpu else available_bytes())
    if gpu and is_this_machine:
        memory = _gpu_bytes()
    measured = stored_rates(hardware, threads) if is_this_machine else None
    if measured is not None:
        return MachineRates(measured, WEIGHTS, gpu, memory, True)
    if not typical:
        return None
    # Memory and sorts do not get faster with more cores.
    cores = 1 if gpu else threads
    rates = Rates(
        products=cores * typical[str(hardware.precision)] * typical["efficiency"],
        memory=typical["bytes"] * typical["bytes_efficiency"],
        cache=cores * typical["cache"],
        exponentials=cores * typical["exponentials"],
        sorts=typical["sorts"],
        operator_s=typical["operator_s"],
    )
    return MachineRates(rates, ALL_AS_IS if gpu else WEIGHTS, gpu, memory, False)


def _gpu_bytes() -> float:
    """Return the memory of this machine's first GPU."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory)


def _has_gpu(hardware: HardwareProfile) -> bool:
    """Return whether this machine has the GPU that a profile names."""
    import torch

    if not torch.cuda.is_available():
        return False
    return hardware.name == ANY_GPU or hardware.name in torch.cuda.get_device_name().lower()

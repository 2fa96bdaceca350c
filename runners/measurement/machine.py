"""The machine that planning reckons with: its measured rates, or typical ones of its kind."""

from typing import NamedTuple

from lra.runners.measurement.effort import WEIGHTS, Effort, seconds
from lra.runners.measurement.hardware import Device, HardwareProfile, available_bytes
from lra.runners.measurement.rates import Rates, stored_rates

ALL_AS_IS = Effort(*[1.0] * len(Effort._fields))
"""Weights of typical rates, which are those of operators inside models."""
ANY_GPU = "laptop_gpu"
"""The profile for a GPU that has none."""


class MachineRates(NamedTuple):
    """What planning knows of a machine."""

    rates: Rates
    weights: Effort
    ahead: bool
    """See `lra.runners.measurement.effort.seconds`."""
    memory_bytes: float | None
    """What all cells at once may use; None: unknown."""
    measured: bool
    """Whether the rates are those of the machine itself."""

    def seconds(self, work: Effort) -> float:
        """Return the time of a pass."""
        return seconds(work, self.rates, ahead=self.ahead, weights=self.weights)


def machine_of(hardware: HardwareProfile, threads: int) -> MachineRates | None:
    """Return the machine that a profile stands for; None where its rates are unknown.

    Args:
        hardware: the profile.
        threads: of a CPU.
    """
    gpu = hardware.device is Device.cuda
    typical = hardware.typical
    here = not gpu or _is_here(hardware)
    memory = typical.get("memory_bytes") or (None if gpu else available_bytes())
    if gpu and here:
        memory = _card_bytes()
    measured = stored_rates(hardware, threads) if here else None
    if measured is not None:
        return MachineRates(measured, WEIGHTS, gpu, memory, True)
    if not typical:
        return None
    # No CPU's memory is as many times faster as it has cores.
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


def _card_bytes() -> float:
    """Return the memory of this machine's first GPU."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory)


def _is_here(hardware: HardwareProfile) -> bool:
    """Tell whether this machine has the GPU that a profile names."""
    import torch

    if not torch.cuda.is_available():
        return False
    return hardware.name == ANY_GPU or hardware.name in torch.cuda.get_device_name().lower()

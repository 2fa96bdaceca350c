"""The hardware profile: device, number format, threads and memory of a run. Torch-free."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import lru_cache
from pathlib import Path

from lra.conf.choices import by_name
from lra.conf.processors import processors

MOST_PARALLEL = 4096
"""Most threads or processes; more would overload any machine."""
LEAST_MEMORY_BYTES = 2**20
"""A lower memory limit is a mistake in the unit, because no run needs so little."""

NO_GPU = (
    "hardware.device is cuda, but PyTorch finds no GPU on this machine; choose hardware=cpu, or "
    "install PyTorch with CUDA (`lra doctor` shows what PyTorch finds)"
)


class Device(StrEnum):
    """Kind of device."""

    cpu = auto()
    cuda = auto()


class Precision(StrEnum):
    """Number format of the forward pass; parameters and optimiser stay in float32."""

    float32 = auto()
    bfloat16 = auto()
    float16 = auto()


@lru_cache
def cpu_name() -> str:
    """Return the processor's model name as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def available_bytes() -> int | None:
    """Return how much memory is available without swapping; None if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def device_name(device: Device) -> str:
    """Return the name of this machine's CPU or first GPU. Imports torch for a GPU."""
    if device is Device.cpu:
        return cpu_name()
    import torch

    if not torch.cuda.is_available():
        raise ValueError(NO_GPU)
    return torch.cuda.get_device_name(0)


class MatmulPrecision(StrEnum):
    """Precision of float32 products, as in `torch.set_float32_matmul_precision`, and in cuDNN."""

    highest = auto()
    high = auto()
    medium = auto()


class KernelChoice(StrEnum):
    """Which form computes an operation that has a public kernel, such as one of fla-core."""

    own = auto()
    """Our PyTorch operations compute everything."""
    public = auto()
    """Public kernels compute every operation that can have one; otherwise a run is refused."""
    auto = auto()
    """Public kernels compute what they can, and our PyTorch operations the rest."""


TYPICAL = (
    "float32", "bfloat16", "float16", "efficiency", "bytes", "bytes_efficiency", "cache",
    "exponentials", "sorts", "operator_s", "memory_bytes",
)  # fmt: skip
"""Typical rates of a machine. For each number format: peak operations per second. `efficiency`: the
fraction of it that large products reach. `bytes`: bytes per second of memory; `bytes_efficiency`:
the fraction that operators reach. `cache`, `exponentials`, `sorts`: bytes per second. `operator_s`:
seconds to call an operator. `memory_bytes`: memory; 0: the available memory. Rates of a CPU are
those of one core."""


def check_typical(typical: Mapping[str, float]) -> None:
    """Raise ValueError if rates are missing, unknown or not positive; an empty mapping is valid."""
    if typical and set(typical) != set(TYPICAL):
        wrong = sorted(set(typical) ^ set(TYPICAL))
        raise ValueError(
            f"typical: {wrong} is missing or unknown; wanted all of {', '.join(TYPICAL)}, or an "
            "empty mapping"
        )
    for name, value in typical.items():
        if (
            not isinstance(value, int | float)
            or not 0 <= value < float("inf")
            or (value == 0 and name != "memory_bytes")
        ):
            raise ValueError(f"typical.{name}: got {value}; wanted a number above 0")


@by_name
@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """The device, number format and limits of runs on one kind of machine."""

    name: str
    device: Device = Device.cpu
    precision: Precision = Precision.float32
    matmul_precision: MatmulPrecision = MatmulPrecision.highest
    compile: bool = False
    kernels: KernelChoice = KernelChoice.own
    threads: int = 0
    """CPU threads of a run that measures time, which runs alone; 0: all cores (or the quota)."""
    training_threads: int = 1
    """CPU threads of each process that trains."""
    training_processes: int = 0
    """How many trainings run at the same time; 0: as many as cores or GPUs allow."""
    processes: int = 1
    """Processes of one training; each has a GPU, or `training_threads` threads of a CPU."""
    sharded: bool = False
    """Whether weights are split among the processes (FSDP2); False: each has all weights (DDP)."""
    memory_limit_bytes: int | None = None
    """A run that needs more memory ends as out_of_memory. None: the limit is the memory of the GPU,
    or 90 % of the available main memory divided by the number of runs at the same time."""
    token_budget: int = 8192
    """Tokens of one timed batch: it has token_budget / length sequences."""
    peak_flops_per_second: float | None = None
    """Published peak rate of dense products in `precision`; None: measured in each run."""
    peak_bytes_per_second: float | None = None
    typical: dict[str, float] = field(default_factory=dict)
    """Rates for `lra plan` on a machine without measured rates: see `TYPICAL`."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        for name, least, most, advice in (
            ("threads", 0, MOST_PARALLEL, " (0: all cores)"),
            ("training_threads", 1, MOST_PARALLEL, ""),
            ("training_processes", 0, MOST_PARALLEL, " (0: as many as the cores allow)"),
            ("processes", 1, MOST_PARALLEL, ""),
            ("memory_limit_bytes", LEAST_MEMORY_BYTES, None, " (null: lra chooses the limit)"),
            ("token_budget", 1, None, ""),
        ):
            value = getattr(self, name)
            if value is not None and (value < least or (most is not None and value > most)):
                bounds = f"at least {least}" if most is None else f"{least} to {most}"
                raise ValueError(f"{name}: got {value}; wanted {bounds}{advice}")
        for name in ("peak_flops_per_second", "peak_bytes_per_second"):
            if (peak := getattr(self, name)) is not None and not peak > 0:
                raise ValueError(
                    f"{name}: got {peak}; wanted a number above 0, or null, which measures the rate"
                )
        check_typical(self.typical)
        self._check_sharded()

    def _check_sharded(self) -> None:
        """Raise ValueError if `sharded` is set with options that exclude it."""
        if not self.sharded:
            return
        for name, wrong, wanted in (
            ("processes", self.processes == 1, "2 or more, because the weights are split among "
                                               "processes"),
            ("precision", self.precision is Precision.float16, "float32 or bfloat16, because the "
                                                               "gradients of float16 need scaling"),
            ("compile", self.compile, "false, because torch.compile cannot follow weights that "
                                      "are gathered and freed"),
        ):  # fmt: skip
            if wrong:
                value = str(getattr(self, name)).lower()
                raise ValueError(
                    f"sharded: got true with {name}={value}; wanted {name}={wanted}; or set "
                    "sharded=false"
                )

    def labels(self) -> dict[str, str]:
        """Return labels about the processes of a run; none if it has one process."""
        if self.processes == 1:
            return {}
        return {
            "processes": str(self.processes),
            **({"sharded": "true"} if self.sharded else {}),
        }

    def timing_threads(self) -> int:
        """Return the CPU threads of a run that measures time."""
        return self.threads or processors()

    def side_by_side(self, *, gpus: int = 1) -> int:
        """Return how many trainings run at the same time on a machine with `gpus` GPUs."""
        if self.training_processes:
            return self.training_processes
        if self.device is Device.cuda:
            return max(1, gpus // self.processes)
        return max(1, processors() // (self.training_threads * self.processes))

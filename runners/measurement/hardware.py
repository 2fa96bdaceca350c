"""Where a run happens and how precisely. Torch-free."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from functools import lru_cache
from pathlib import Path

from lra.conf.choices import by_name
from lra.conf.processors import processors

MOST_PARALLEL = 4096
"""Threads or processes; no machine has more, and asking for more takes one down."""
LEAST_MEMORY_BYTES = 2**20
"""Less is a slip of the unit: no cell needs as little."""

NO_GPU = (
    "hardware.device is cuda, but PyTorch finds no GPU here; choose hardware=cpu, or install a "
    "CUDA build of torch (`lra doctor` shows what is found)"
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
    """Return the memory that can be had without swapping; None where the system does not say."""
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
    """As in `torch.set_float32_matmul_precision`; of cuDNN's products too."""

    highest = auto()
    high = auto()
    medium = auto()


TYPICAL = (
    "float32", "bfloat16", "float16", "efficiency", "bytes", "bytes_efficiency", "cache",
    "exponentials", "sorts", "operator_s", "memory_bytes",
)  # fmt: skip
"""Peak operations per second by number format, and the share that large products reach; bytes per
second of memory, and the share that operators reach; of a cache, exponentials and sorts; seconds to
call an operator; bytes of memory, 0 for what is available. Rates of a CPU are those of one core."""


def check_typical(typical: Mapping[str, float]) -> None:
    """Refuse rates that are incomplete, unknown or no rates. Raises ValueError."""
    if typical and set(typical) != set(TYPICAL):
        odd = sorted(set(typical) ^ set(TYPICAL))
        raise ValueError(
            f"typical: {odd} is missing or unknown; wanted {{}} or {', '.join(TYPICAL)}"
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
    """One machine class."""

    name: str
    device: Device = Device.cpu
    precision: Precision = Precision.float32
    matmul_precision: MatmulPrecision = MatmulPrecision.highest
    compile: bool = False
    threads: int = 0
    """CPU threads of a timing cell, which runs alone; 0 = every core, or those of a quota."""
    training_threads: int = 1
    """CPU threads of a training cell."""
    training_processes: int = 0
    """Training cells side by side; 0 = as many as there are cores, or GPUs, for."""
    processes: int = 1
    """Processes of one training cell, each with a GPU, or with training_threads of a CPU."""
    sharded: bool = False
    """Whether they share the weights out (FSDP2); otherwise each holds all of them (DDP)."""
    memory_limit_bytes: int | None = None
    """A cell that needs more ends as out_of_memory. None: the GPU's memory, or 90 % of the main
    memory that is available, shared by the cells side by side."""
    token_budget: int = 8192
    """Tokens of one timed batch: batch size = token_budget / length."""
    peak_flops_per_second: float | None = None
    """Published dense peak in `precision`; None = measured in each timing cell."""
    peak_bytes_per_second: float | None = None
    typical: dict[str, float] = field(default_factory=dict)
    """The rates of planning where those of the machine were not measured: `TYPICAL`."""

    def __post_init__(self) -> None:
        """Refuse values that no machine has, each with the way out."""
        for name, least, most, way_out in (
            ("threads", 0, MOST_PARALLEL, "; 0 takes every core"),
            ("training_threads", 1, MOST_PARALLEL, ""),
            ("training_processes", 0, MOST_PARALLEL, "; 0 takes as many as the cores allow"),
            ("processes", 1, MOST_PARALLEL, ""),
            ("memory_limit_bytes", LEAST_MEMORY_BYTES, None, "; null adds no limit"),
            ("token_budget", 1, None, ""),
        ):
            value = getattr(self, name)
            if value is not None and (value < least or (most is not None and value > most)):
                bounds = f"at least {least}" if most is None else f"{least} to {most}"
                raise ValueError(f"{name}: got {value}; wanted {bounds}{way_out}")
        for name in ("peak_flops_per_second", "peak_bytes_per_second"):
            if (peak := getattr(self, name)) is not None and not peak > 0:
                raise ValueError(
                    f"{name}: got {peak}; wanted a number above 0; null has it measured"
                )
        check_typical(self.typical)
        self._check_sharded()

    def _check_sharded(self) -> None:
        """Refuse weights that cannot be shared out. Raises ValueError."""
        if not self.sharded:
            return
        for name, wrong, way_out in (
            ("processes", self.processes == 1, "2 or more, because the weights are split among "
                                               "processes"),
            ("precision", self.precision is Precision.float16, "float32 or bfloat16, whose "
                                                               "gradients need no scaling"),
            ("compile", self.compile, "false, because torch.compile cannot follow weights that "
                                      "are gathered and freed"),
        ):  # fmt: skip
            if wrong:
                value = str(getattr(self, name)).lower()
                raise ValueError(
                    f"sharded: got true with {name}={value}; wanted {name}={way_out}; "
                    "or leave sharded=false"
                )

    def labels(self) -> dict[str, str]:
        """Return labels of rows of several processes; none for one."""
        if self.processes == 1:
            return {}
        return {
            "processes": str(self.processes),
            **({"sharded": "true"} if self.sharded else {}),
        }

    def timing_threads(self) -> int:
        """Return the CPU threads of a timing cell."""
        return self.threads or processors()

    def side_by_side(self, *, gpus: int = 1) -> int:
        """Return how many training cells run at once where there are so many GPUs."""
        if self.training_processes:
            return self.training_processes
        if self.device is Device.cuda:
            return max(1, gpus // self.processes)
        return max(1, processors() // (self.training_threads * self.processes))

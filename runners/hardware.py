"""Where a run happens and how precisely. Torch-free."""

import os
from dataclasses import dataclass
from enum import StrEnum, auto


class Device(StrEnum):
    """Kind of device."""

    cpu = auto()
    cuda = auto()


class Precision(StrEnum):
    """Number format of the forward pass; parameters and optimiser stay in float32."""

    float32 = auto()
    bfloat16 = auto()
    float16 = auto()


class MatmulPrecision(StrEnum):
    """As in `torch.set_float32_matmul_precision`."""

    highest = auto()
    high = auto()
    medium = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One machine class."""

    name: str
    device: Device = Device.cpu
    precision: Precision = Precision.float32
    matmul_precision: MatmulPrecision = MatmulPrecision.highest
    compile: bool = False
    threads: int = 0
    """CPU threads of a timing cell, which runs alone; 0 = every core."""
    training_threads: int = 1
    """CPU threads of a training cell."""
    training_processes: int = 0
    """Training cells side by side; 0 = cores / training_threads (on a GPU: 1)."""
    memory_limit_bytes: int | None = None
    """A cell that needs more ends as out_of_memory."""
    token_budget: int = 8192
    """Tokens of one timed batch: batch size = token_budget / length."""
    peak_flops_per_second: float | None = None
    """Published dense peak in `precision`; None = measured in each timing cell."""
    peak_bytes_per_second: float | None = None

    def timing_threads(self) -> int:
        """Return the CPU threads of a timing cell."""
        return self.threads or len(os.sched_getaffinity(0))

    def side_by_side(self) -> int:
        """Return how many training cells run at once."""
        if self.training_processes:
            return self.training_processes
        if self.device is Device.cuda:
            return 1
        return max(1, len(os.sched_getaffinity(0)) // self.training_threads)

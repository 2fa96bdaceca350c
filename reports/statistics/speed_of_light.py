"""The fraction of what a machine could do: the least time of a pass, divided by its measured time.

The least time is the longer of two. Operations take at least `flops` divided by the peak rate of
the machine. Memory takes at least the bytes that a pass cannot avoid, divided by the bandwidth of a
large copy: each parameter is read once in a forward pass; in a training step, it is read twice and
written once, and each byte that autograd saves is written and read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

PARAMETER_BYTES = 4
"""Bytes of a parameter. All profiles store parameters in float32."""


@dataclass(frozen=True, slots=True)
class LeastTime:
    """Least seconds of a pass, by operations and by bytes."""

    operations_s: float
    bytes_s: float

    @property
    def seconds(self) -> float:
        """Return the least time of a pass."""
        return max(self.operations_s, self.bytes_s)

    @property
    def limit(self) -> str:
        """Return what the least time comes from."""
        return "operations" if self.operations_s >= self.bytes_s else "memory"


def least_time(mode: str, metrics: Sequence[Mapping[str, float]]) -> LeastTime | None:
    """Return the least time of a pass, the median over runs; None if rows lack a number.

    Args:
        mode: `step` (training step) or `forward`.
        metrics: numbers of each run by metric: `flops`, `flops_per_second`, `utilisation`,
            `bandwidth`, `parameters` and, in a training step, `saved_bytes`.
    """
    found = []
    for run in metrics:
        try:
            peak = run["flops_per_second"] / run["utilisation"]
            moved = PARAMETER_BYTES * run["parameters"] * (3 if mode == "step" else 1)
            moved += 2 * run["saved_bytes"] if mode == "step" else 0.0
            found.append((run["flops"] / peak, moved / run["bandwidth"]))
        except (KeyError, ZeroDivisionError):  # an old file of rows, or a mixer without products
            return None
    return LeastTime(*(median(times) for times in zip(*found, strict=True))) if found else None

"""How costs grow with the length, as families declare it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Growth:
    """How a cost grows with the length n: n^exponent, times log n where `log` is set.

    Declared from the family's mathematics and its options, never fitted: what grows more slowly
    beside it (projections, landmarks, the edges of a window) is no part of it. Ordered by growth.
    """

    exponent: float
    log: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.exponent < math.inf:
            raise ValueError(
                f"exponent must be 0 or more, and finite: got {self.exponent}; 1 is linear growth"
            )

    def at(self, length: float) -> float:
        """Return its value at a length of 2 or more; the logarithm is that to base 2."""
        return float(length**self.exponent * (math.log2(length) if self.log else 1.0))

    def __str__(self) -> str:
        """Return it as tables print it: n, n log n, n^1.5, n²."""
        powers = {0.0: "" if self.log else "1", 1.0: "n", 2.0: "n²", 3.0: "n³"}
        power = powers.get(self.exponent, f"n^{self.exponent:g}")
        return f"{power} log n".strip() if self.log else power

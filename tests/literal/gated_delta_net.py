"""Gated DeltaNet is `delta_net` with a decay of each head, and with levels."""

from tests.literal.delta_net import GRIDS as DELTA, USUAL, literal

__all__ = ["literal"]
GRIDS = [
    *DELTA,
    {**USUAL, "log_linear": [True], "value_expansion": [1, 2]},
    {"causal": [True], "chunk": [8], "length": [21], "head_epsilon": [1e-2]},
]

"""Gated DeltaNet is `delta_net` with a decay of each head, and with levels, or Comba's error."""

from tests.literal.delta_net import GRIDS as DELTA, USUAL, literal

__all__ = ["literal"]
COMBA = {
    **USUAL, "negative_eigenvalues": [False], "comba": [True], "correction": [1.0, 0.02],
    "value_expansion": [1, 2], "activation": ["silu", "identity"], "key_norm": ["l2"],
}  # fmt: skip
PRECONDITION = {
    **USUAL, "negative_eigenvalues": [False], "precondition": [1.0, 1.5, 2.0],
    "value_expansion": [1, 2], "activation": ["silu", "identity"], "key_norm": ["l2"],
}  # fmt: skip
LEVELS = {**USUAL, "log_linear": [True], "value_expansion": [1, 2]}
EPSILON = {"causal": [True], "chunk": [8], "length": [21], "head_epsilon": [1e-2]}
GRIDS = [*DELTA, LEVELS, COMBA, PRECONDITION, EPSILON]

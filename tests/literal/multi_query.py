"""Softmax attention with keys and values of one head: arXiv:1911.02150."""

from tests.literal.heads import attended as literal

__all__ = ["literal"]
GRIDS = [{"causal": [False, True], "masks": ["", "keep"], "positions": ["none", "rotary"]}]

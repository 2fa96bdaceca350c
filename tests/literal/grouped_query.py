"""Softmax attention whose keys and values groups of heads share: arXiv:2305.13245."""

from tests.literal.heads import attended as literal

__all__ = ["literal"]
USUAL = {"width": [24], "heads": [6]}
GRIDS = [
    {
        **USUAL,
        "key_value_heads": [1, 2, 6],
        "causal": [False, True],
        "positions": ["none", "rotary", "alibi"],
        "masks": ["", "keep", "document"],
    },
    {**USUAL, "key_value_heads": [2], "masks": ["source"]},
]

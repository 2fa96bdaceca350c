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
        "sink": [False, True],
    },
    {**USUAL, "key_value_heads": [2], "masks": ["source"], "sink": [False, True]},
    {
        **USUAL,
        "key_value_heads": [2],
        "causal": [False, True],
        "positions": ["none", "rotary"],
        "output_gate": [False, True],
        "qk_norm": [False, True],
        "masks": ["", "keep"],
    },
    {**USUAL, "key_value_heads": [2], "positions": ["none", "rotary"], "joint_qk_norm": [True]},
    {
        **USUAL,
        "key_value_heads": [2],
        "positions": ["rotary"],
        "rotary_share": [None, 0.5],
        "rotary_base": [None, 100.0],
        "masks": ["", "keep", "start"],
    },
]

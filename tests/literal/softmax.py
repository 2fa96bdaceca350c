"""Softmax attention: Vaswani et al. 2017, arXiv:1706.03762, section 3.2."""

from tests.literal.heads import attended as literal

__all__ = ["literal"]
GRIDS = [
    {
        "causal": [False, True],
        "positions": ["none", "rotary", "alibi"],
        "masks": ["", "keep", "document", "keep document"],
        "length": [13, 1],
        "output_gate": [False, True],
        "qk_norm": [False, True],
        "sink": [False, True],
        "own_head_width": [None, 6],
    },
    {
        "causal": [True],
        "masks": ["prefix", "keep document prefix"],
        "length": [7],
        "sink": [False, True],
    },
    {"masks": ["source"], "output_gate": [False, True], "sink": [False, True]},
]

"""No attention: values projected back."""

from typing import Any

from torch import Tensor

GRIDS = [{"causal": [False, True], "bias": [False, True], "masks": ["", "keep", "document"]}]


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """W_o W_v x and what their biases add."""
    y = x @ (mixer.out_proj.weight @ mixer.v_proj.weight).mT
    if mixer.v_proj.bias is None:
        return y
    return y + mixer.out_proj.weight @ mixer.v_proj.bias + mixer.out_proj.bias

"""H-Transformer's gradients, taken twice."""

import pytest
import torch
from torch import Tensor

from lra.models.ops.hierarchical.attention import hierarchical_attention
from tests.attention import drawn


def heads(length: int, *, width: int = 5, values: int = 4) -> list[Tensor]:
    widths = (width, width, values)
    return [drawn(2, 3, length, w, seed=s).requires_grad_() for s, w in enumerate(widths)]


def test_backward_twice_is_refused_not_wrong():
    qkv = heads(20)
    out = hierarchical_attention(*qkv, block=4)
    cotangent = torch.ones_like(out, requires_grad=True)
    (gradient,) = torch.autograd.grad(out, qkv[0], cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()

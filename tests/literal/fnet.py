"""FNet: Lee-Thorp et al. 2021, arXiv:2105.03824; the transform as two matrices of waves."""

import math
from typing import Any

import torch
from jaxtyping import Complex
from torch import Tensor

GRIDS = [
    {"method": ["fft", "matmul"], "norm": ["none", "ortho"], "length": [1, 2, 13, 64, 101],
     "width": [12, 5, 1], "heads": [1], "small": [False, True], "max_length": [101]},
    {"form": ["linear", "random"], "length": [40, 9, 1], "max_length": [40]},
]  # fmt: skip


def waves(n: int) -> Complex[Tensor, "n n"]:
    """Return exp(-2 pi i j k / n)."""
    place = torch.arange(n, dtype=torch.float64)
    angle = -2 * math.pi * (place[:, None] * place % n) / n
    return torch.polar(torch.ones_like(angle), angle)


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Re(F_n x F_d), or two matrices in place of the waves."""
    _, n, d = x.shape
    if case.form != "fourier":
        return torch.einsum("nm,bmj,jk->bnk", mixer.sequence[:n, :n], x, mixer.hidden)
    y = (waves(n) @ x.to(torch.complex128) @ waves(d)).real
    return y / math.sqrt(n * d) if case.norm == "ortho" else y

"""Inverses of small matrices of landmarks: the six-step iteration, exact, and with a ridge.

    Z_0 = A^T / (|A|_1 |A|_inf),   Z <- 1/4 Z (13 I - A Z (15 I - A Z (7 I - A Z)))

The iteration converges to the Moore-Penrose inverse from every such start. The Nystromformer and
Skyformer are defined with its first six steps: these change small singular values little, which an
exact inverse of a nearly singular matrix would make huge. Rows and columns of zeros stay zero, so
landmarks are excluded by setting theirs to zero.

Cost: 48 m^3 operations forward for six steps and 132 m^3 backward; kept are the m^2 entries of each
Z. Source: Xiong et al., "Nystromformer", arXiv:2102.03902, after Razavi et al. 2014.
"""

from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


class Inverse(StrEnum):
    """How the landmark matrix is inverted."""

    iterative = auto()
    exact = auto()
    """The Moore-Penrose inverse from a singular value decomposition."""
    ridge = auto()
    """(A^T A + ridge I)^-1 A^T."""


class Initialisation(StrEnum):
    """Norms by which the first value of the iterative inverse is divided."""

    exact = auto()
    """The norms of each matrix."""
    original = auto()
    """The largest column sum over batch and heads, as in the authors' code: outputs depend on the
    batch. Rows sum to 1 in Nystromformer, unlike in Skyformer."""


def _compute_brackets(
    a: Float[Tensor, "r m m"], z: Float[Tensor, "r m m"], identity: Float[Tensor, "1 m m"]
) -> tuple[Float[Tensor, "r m m"], ...]:
    """Return x = A Z, inner = 7 I - x, middle = 15 I - x inner, and outer = 13 I - x middle."""
    x = torch.bmm(a, z)
    inner = 7 * identity - x
    middle = torch.baddbmm(15 * identity, x, inner, alpha=-1)
    return x, inner, middle, torch.baddbmm(13 * identity, x, middle, alpha=-1)


class _Iterate(torch.autograd.Function):
    """`apply(a, z, iterations)`: the iteration from Z_0 = z, which saves Z of each step."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, z: Tensor, iterations: int) -> Tensor:
        """Return Z after `iterations` steps."""
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)[None]
        iterates = []
        for _ in range(iterations):
            iterates.append(z)
            z = torch.bmm(z, _compute_brackets(a, z, identity)[-1]).mul_(0.25)
        ctx.save_for_backward(a, *iterates)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of A and Z_0, from the last step Z <- Z outer / 4 to the first."""
        a, *iterates = ctx.saved_tensors
        identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)[None]
        da = torch.zeros_like(a)
        for z in reversed(iterates):
            x, inner, middle, outer = _compute_brackets(a, z, identity)
            douter = torch.bmm(z.mT, gradient).mul_(0.25)
            dmiddle = torch.bmm(x.mT, douter).neg_()
            dinner = torch.bmm(x.mT, dmiddle).neg_()
            dx = torch.baddbmm(dinner, douter, middle.mT).neg_()
            dx = torch.baddbmm(dx, dmiddle, inner.mT, alpha=-1)
            da = torch.baddbmm(da, dx, z.mT)
            gradient = torch.baddbmm(torch.bmm(a.mT, dx), gradient, outer.mT, alpha=0.25)
        return da, gradient, None


def iterative_inverse(
    a: Float[Tensor, "b h m m"], iterations: int = 6, *, together: bool = False
) -> Float[Tensor, "b h m m"]:
    """Return Z, the approximate inverse of `a`, after `iterations` steps.

    Args:
        a: Matrices to invert.
        iterations: Number of steps.
        together: Whether the start is scaled by 1 / max |A|_1 over all matrices, instead of
            1 / (|A|_1 |A|_inf) of each matrix.
    """
    columns, rows = (a.abs().sum(axis).amax(-1) for axis in (-2, -1))
    norm = columns.amax() if together else columns * rows
    # For a matrix of zeros, the start and the result are zeros.
    scale = torch.where(norm > 0, norm, 1).reciprocal()
    start = a.mT * (scale if together else scale[..., None, None])
    z: Tensor = _Iterate.apply(a.flatten(0, 1), start.flatten(0, 1), iterations)  # type: ignore[no-untyped-call]
    return z.view_as(a)


@dataclass(frozen=True, kw_only=True)
class InverseRule:
    """An inverse with its options."""

    inverse: Inverse = Inverse.iterative
    iterations: int = 6
    initialisation: Initialisation = Initialisation.exact
    ridge: float = 0.01

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(
                f"iterations must be at least 1: got {self.iterations}; the papers use 6"
            )
        if self.inverse == Inverse.ridge and self.ridge <= 0:
            raise ValueError(
                f"ridge must be above 0: got {self.ridge}; for an inverse without a ridge, choose "
                "inverse=exact"
            )

    @property
    def by_batch(self) -> str:
        """The option that lets examples of a batch affect each other; empty: there is none."""
        original = self.initialisation == Initialisation.original
        together = original and self.inverse == Inverse.iterative
        return f"initialisation={Initialisation.original}" if together else ""

    def __call__(self, a: Float[Tensor, "b h m m"]) -> Float[Tensor, "b h m m"]:
        """Return the inverse of each matrix, in its own precision."""
        z: Tensor
        if self.inverse == Inverse.exact:
            z = torch.linalg.pinv(a)
        elif self.inverse == Inverse.ridge:
            identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
            z = torch.linalg.solve(a.mT @ a + self.ridge * identity, a.mT)
        else:
            z = iterative_inverse(a, self.iterations, together=bool(self.by_batch))
        return z

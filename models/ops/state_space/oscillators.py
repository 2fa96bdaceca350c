"""Forced oscillators x'' = -A x - G x' + w, in steps of time dt, computed as a convolution.

    im      z_t = z_{t-1} + dt (w_t - A x_t)                   G = 0
    imex    z_t = z_{t-1} + dt (w_t - A x_{t-1} - G z_t)
    both    x_t = x_{t-1} + dt z_t

So (z_t, x_t) = M (z_{t-1}, x_{t-1}) + F w_t, with a real 2 x 2 matrix M for each oscillator. The
kernel of x is the second number of M^j F, for every lag j. Powers of M are products only, so that
the kernel and its gradients are also right where M has a double eigenvalue and one eigenvector, for
example without stiffness (A = 0).

Cost       The kernel takes 4 n operations per oscillator, and saves about 16 sqrt(n) numbers.
"""

from enum import StrEnum, auto
from math import exp, sqrt
from typing import cast

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.ops.convolution.long import long_convolution
from lra.models.ops.state_space.float32_parameters import Float32Parameters


class Integrator(StrEnum):
    """How a step is taken: implicit (im), or implicit-explicit (imex)."""

    im = auto()
    imex = auto()


def transition(
    stiffness: Float[Tensor, " p"],
    damping: Float[Tensor, " p"],
    step: Float[Tensor, " p"],
    rule: Integrator,
) -> tuple[Float[Tensor, "p 2 2"], Float[Tensor, "p 2"]]:
    """Return M and F of p oscillators; `damping` must be 0 with `Integrator.im`.

    The product of the two eigenvalues of M is 1 / (1 + dt^2 A) with im, else 1 / (1 + dt G).
    """
    force = step * stiffness
    if rule == Integrator.im:
        share = 1 / (1 + step * force)
        place = share
    else:
        share = 1 / (1 + step * damping)
        place = 1 - step * force * share
    rows = torch.stack((share, -force * share), -1), torch.stack((step * share, place), -1)
    return torch.stack(rows, -2), torch.stack((step * share, step * step * share), -1)


def oscillate(
    w: Float[Tensor, "b c p l"],
    matrix: Float[Tensor, "p 2 2"],
    entry: Float[Tensor, "p 2"],
    before: Float[Tensor, "b c p 2"] | None = None,
) -> tuple[Float[Tensor, "b c p l"], Float[Tensor, "b c p 2"] | None]:
    """Return x_t of (z_t, x_t) = M (z_{t-1}, x_{t-1}) + F w_t, and the last (z, x).

    Args:
        w: Forces, 0 at padding, for c sets of p oscillators.
        matrix: M of each oscillator, best in float64: its t-th power has t times its error.
        entry: F of each oscillator.
        before: (z, x) before the first token; None: zeros, and no last states are returned.
    """
    length, dtype = w.shape[-1], w.dtype
    # M^(i m + j) is a product of two tables, with M^(i m) and with M^j for j < m.
    size = 1 << ((length - 1).bit_length() + 1) // 2
    inner = _powers(matrix, size)
    outer = _powers(torch.linalg.matrix_power(matrix, size), -(-length // size))
    columns = torch.einsum("pixy,py->pix", outer, entry)
    kernel = torch.einsum("pjy,piy->pij", inner[:, :, 1], columns).flatten(-2)[:, :length]
    x = long_convolution(w, kernel.to(dtype))
    if before is None:
        return x, None
    inner, outer = inner.to(dtype), outer.to(dtype)
    columns = torch.einsum("pixy,pyz,bcpz->bcpix", outer, matrix.to(dtype), before)
    free = torch.einsum("pjy,bcpiy->bcpij", inner[:, :, 1], columns).flatten(-2)[..., :length]
    # The last state is the sum of M^k F w_(l - 1 - k), and M^l of the state before.
    backwards = F.pad(w.flip(-1), (0, outer.shape[1] * size - length))
    parts = torch.unflatten(backwards, -1, (outer.shape[1], size))
    pushes = torch.einsum("pjxy,py->pjx", inner, entry.to(dtype))
    sums = torch.einsum("bcpij,pjx->bcpix", parts, pushes)
    last = torch.linalg.matrix_power(matrix, length).to(dtype)
    after = torch.einsum("pixy,bcpiy->bcpx", outer, sums)
    return x + free, after + torch.einsum("pxy,bcpy->bcpx", last, before)


class Oscillators(Float32Parameters):
    """Oscillators that are forced by B u, with the parameters A, G, dt and B.

    Args:
        width: Number of channels of u.
        number: Number of oscillators, p.
        rule: How a step is taken.
        damped: Whether there is a damping G, with which A is limited to the range of oscillations.
    """

    undecayed = ("stiffness", "damping", "step")

    def __init__(self, width: int, number: int, rule: Integrator, *, damped: bool) -> None:
        """Draw B; `start` or `start_damped` draws the other parameters."""
        super().__init__()
        self.rule = rule
        self.stiffness = nn.Parameter(torch.empty(number))
        self.damping = nn.Parameter(torch.empty(number)) if damped else None
        self.step = nn.Parameter(torch.empty(number))
        self.entry = nn.Parameter(torch.empty(2, number, width))
        nn.init.uniform_(self.entry, -1 / sqrt(width), 1 / sqrt(width))

    def start(self, stiffness_max: float) -> None:
        """Draw A up to `stiffness_max`, and dt between 1/2 and sigma(1) = 0.73.

        Raises:
            ValueError: Undamped imex could start with dt^2 A > 4, where it is unstable.
        """
        bound = 4 * (1 + exp(-1)) ** 2
        if self.rule == Integrator.imex and stiffness_max > bound:
            raise ValueError(
                "discretisation=imex without damping is unstable where dt^2 A > 4, and dt starts "
                f"at up to 0.73, so set stiffness_max to at most {bound:.2f}: got {stiffness_max}; "
                "or choose discretisation=im or damping=true"
            )
        nn.init.uniform_(self.stiffness, 0, stiffness_max)
        nn.init.uniform_(self.step)

    def start_damped(self, radius_min: float, angle_max: float) -> None:
        """Draw modulus and angle of a step, with squared moduli uniform between radius_min^2 and 1.

        The modulus must be positive, the angle between 0 and pi.
        """
        nn.init.normal_(self.step, std=0.5)
        squares = torch.empty_like(self.step).uniform_(radius_min**2, 1)
        angle = torch.empty_like(self.step).uniform_(0, angle_max)
        dt = self.step.detach().sigmoid()
        with torch.no_grad():
            cast(Tensor, self.damping).copy_((1 - squares) / (dt * squares))
            trace = 2 * squares.sqrt() * angle.cos()
            self.stiffness.copy_((1 + squares - trace) / (dt.square() * squares))

    def constants(self) -> tuple[Float[Tensor, " p"], Float[Tensor, " p"], Float[Tensor, " p"]]:
        """Return A, G and dt of every oscillator, in float64."""
        dt, stiffness = self.step.double().sigmoid(), self.stiffness.double().relu()
        if self.damping is None:
            return stiffness, torch.zeros_like(dt), dt
        damping = self.damping.double().relu()
        # Between these bounds, the eigenvalues of M are conjugates.
        root = (1 + dt * damping).sqrt()
        low, high = (damping / (1 + root)).square(), ((1 + root) / dt).square()
        return self.stiffness.double().clamp(low, high), damping, dt

    def forward(
        self, u: Float[Tensor, "b l d"], before: Complex[Tensor, "b p 2"] | None
    ) -> tuple[Complex[Tensor, "b l p"], Complex[Tensor, "b p 2"] | None]:
        """Return x at every token of `u`, and (z, x) after the last one if `before` is set."""
        w = torch.stack([F.linear(u, part).mT for part in self.entry.to(u.dtype)], dim=1)
        if before is not None:
            before = torch.view_as_real(before).movedim(-1, 1)
        x, after = oscillate(w, *transition(*self.constants(), self.rule), before)
        if after is not None:
            after = torch.complex(*after.unbind(1))
        return torch.complex(*x.mT.unbind(1)), after


def _powers(base: Float[Tensor, "p 2 2"], number: int) -> Float[Tensor, "p m 2 2"]:
    """Return base^0 … base^(number - 1), doubling the table by products with base^(2^k)."""
    table = torch.eye(2, dtype=base.dtype, device=base.device).expand(len(base), 1, 2, 2)
    while (done := table.shape[1]) < number:
        table = torch.cat((table, table[:, : number - done] @ base[:, None]), dim=1)
        base = base @ base
    return table

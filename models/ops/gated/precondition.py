"""A diagonal preconditioner of the keys by which a delta rule writes.

    A_t = exp(g_t) A_(t-1) + beta_t k_t * k_t,   r_t = log(A_t + 1e-6) - c
    M_t = x^(-r_t / (1 + |r_t|))

A_t is the decaying second moment of each key channel, in each head; channels that had large keys
write less, others more, by factors between 1 / x and x. g_t = -exp(a) softplus(W_g u_t + s) and
beta_t = sigma(W_b u_t) are one number for each head and token u_t, and c, a and s for each head.
With x = 1 all factors are 1. The state is A: k numbers a head.

Source: Tumma, Loo and Rus 2026, arXiv:2604.21100, and its layers in flash-linear-attention.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Roles, Site
from lra.models.ops.gated.layer import Borders, by_head
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence

CENTRE = -0.2
"""Initial value of c."""
EPSILON = 1e-6
STRONGEST = 2.0
"""Largest x: with beta up to 1, the eigenvalues of a token's factor are then -1 at least."""


def check_range(largest: float | None, *, negative_eigenvalues: bool) -> None:
    """Raise ValueError unless x keeps the eigenvalues of a token's factor at -1 or above."""
    strongest = STRONGEST / 2 if negative_eigenvalues else STRONGEST
    if largest is None or 1 <= largest <= strongest:
        return
    wanted = f"1 to {strongest:g}, or null"
    if negative_eigenvalues:
        wanted = "1, or null, with negative_eigenvalues=true"
    raise ValueError(
        f"precondition, the largest factor of a key's channels, must be {wanted}: got {largest}; a "
        "larger factor lets states grow"
    )


class Preconditioner(Roles):
    """Factors of the channels of keys, by their past squares.

    Args:
        site: Where the layer is built.
        largest: x, at least 1.
        slowest: Lower bound of the initial rates exp(a), which are uniform up to 16.
    """

    undecayed = ("log_rate", "step_bias", "centre")

    def __init__(self, site: Site, largest: float, *, slowest: float) -> None:
        super().__init__()
        self.heads, self.largest = site.heads, largest
        self.state_shape = site.heads, site.head_width
        self.decay_map = projection(site.width, site.heads, bias=False)
        self.rate_map = projection(site.width, site.heads, bias=False)
        self.log_rate = nn.Parameter(torch.empty(site.heads))
        with torch.no_grad():
            self.log_rate.uniform_(slowest, 16).clamp_(min=1e-6).log_()
        self.step_bias = nn.Parameter(step_biases(site.heads))
        self.centre = nn.Parameter(torch.full((site.heads,), CENTRE))

    def forward(
        self,
        x: Float[Tensor, "b l d"],
        k: Float[Tensor, "b h l k"],
        before: Float[Tensor, "b h k"],
        borders: Borders,
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h k"]]:
        """Return the factors M of unit keys `k` of tokens `x`, and A after the last token."""
        with full_precision(x):
            dtype = sum_dtype(x)
            steps = F.softplus(self.decay_map(x).to(dtype) + self.step_bias.to(dtype))
            g = borders.after_borders((-self.log_rate.to(dtype).exp() * steps).transpose(1, 2))
            beta = self.rate_map(x).to(dtype).sigmoid().transpose(1, 2)
            if borders.keep is not None:
                g = g.masked_fill(~borders.keep[:, None], 0)
                beta = beta.masked_fill(~borders.keep[:, None], 0)
            squares = beta[..., None] * k.to(dtype).square()
            factors = g.exp()[..., None].expand_as(squares)
            a, b = (part.transpose(1, 2).flatten(2) for part in (factors, squares))
            moments = by_head(linear_recurrence(a, b, before.flatten(1)), self.heads)
            r = (moments + EPSILON).log() - self.centre.to(dtype)[:, None, None]
            return (-math.log(self.largest) * r / (1 + r.abs())).exp(), moments[:, :, -1]

    def empty(self, batch_size: int) -> Float[Tensor, "b h k"]:
        """Return zeros for A before the first token."""
        like = self.centre
        return like.new_zeros(batch_size, *self.state_shape, dtype=sum_dtype(like))

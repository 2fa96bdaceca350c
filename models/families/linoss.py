"""LinOSS and D-LinOSS: forced oscillators that all channels share, without or with damping.

    x'' = -A x - G x' + B u,  y = Re(C x) + D u                A, G >= 0; B, C complex
    im      z_t = z_{t-1} + dt (B u_t - A x_t)                 LinOSS-IM, G = 0
    imex    z_t = z_{t-1} + dt (B u_t - A x_{t-1} - G z_t)     LinOSS-IMEX (G = 0), D-LinOSS
    both    x_t = x_{t-1} + dt z_t
    A = relu(a),  G = relu(g),  dt = sigma(s)
    out = (W1 gelu(y) + b1) sigmoid(W2 gelu(y) + b2)

Every step multiplies an oscillation by a modulus: (1 + dt^2 A)^-1/2 with im, (1 + dt G)^-1/2 with
imex. With damping, A is limited to the range of oscillations, (sqrt(1 + dt G) -+ 1)^2 / dt^2.

Cost       The layer takes O(n (d P + P log n + d^2)) operations, and memory O(n P).
State      The state is z and x, 2 P complex numbers, at every length.
Source     Rusch and Rus 2024, arXiv:2410.03943; code: tk-rusch/linoss. Boyer, Rusch and Rus 2025,
           arXiv:2505.12171 (damping); code: camail-official/discretax.
Notation   P is `states`, IM and IMEX are `discretisation`, r_min is `radius_min`, theta_max is
           `angle_max`.
Starts     A is uniform up to `stiffness_max`, s uniform from 0 to 1. With damping, s is N(0, 1/4),
           squared moduli are uniform from radius_min^2 to 1, angles uniform up to `angle_max`.
           Parts of B are uniform within 1 / sqrt(d), those of C within 1 / sqrt(P). D is N(0, 1).
Published  The papers' models are causal (bidirectional=false). Their blocks have batch norm without
           weights, GELU by tanh, dropout 0.05, and no feed-forward network (feed_forward=none).
Unstable   Undamped imex grows without bound where dt^2 A > 4: initial values that could lie there
           are refused, and training does not limit A, as published, so that a run which passes
           the bound fails with a loss that is not finite.
Optimiser  A, G and dt have no weight decay.
Differs    No bidirectional form is published; here a second C reads the same oscillators from the
           end, as in S5. Distances skip padding.
"""

from math import pi, sqrt

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Growth, Need, Positive, Site, options
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions, reading_order
from lra.models.ops.state_space.layer import StateSpace
from lra.models.ops.state_space.oscillators import Integrator, Oscillators


@options
class LinOSS(StateSpace):
    """Linear oscillators, and the gated map behind them."""

    states: Count = 64
    """Number of oscillators of a layer, P."""
    discretisation: Integrator = Integrator.im
    """How a step is taken: implicit (im), or implicit-explicit (imex)."""
    damping: bool = False
    """Whether oscillators have a learned damping G (D-LinOSS)."""
    stiffness_max: Positive = 1.0
    """Largest initial stiffness A; without damping."""
    radius_min: float = 0.9
    """Smallest initial modulus, by which a step multiplies an oscillation; with damping."""
    angle_max: float = pi
    """Largest initial angle of a step, in radians; with damping."""
    needs = (
        BOTH_WAYS,
        Need("damping", discretisation=Integrator.imex),
        Need("stiffness_max", damping=False),
        Need("radius_min", damping=True),
        Need("angle_max", damping=True),
    )

    def build(self, site: Site) -> None:
        """Draw the oscillators and C; ValueError for initial values out of range."""
        if not 0 < self.radius_min < 1:
            raise ValueError(
                "radius_min, the smallest initial modulus, must lie above 0 and below 1: got "
                f"{self.radius_min}; 0.9 is usual"
            )
        if not 0 < self.angle_max <= pi:
            raise ValueError(
                "angle_max, the largest initial angle in radians, must be above 0 and at most pi: "
                f"got {self.angle_max}"
            )
        self.oscillators = Oscillators(
            site.width, self.states, self.discretisation, damped=self.damping
        )
        if self.damping:
            self.oscillators.start_damped(self.radius_min, self.angle_max)
        else:
            self.oscillators.start(self.stiffness_max)
        sides = directions(site, bidirectional=self.bidirectional)
        self.readout = nn.Parameter(torch.empty(sides, 2, site.width, self.states))
        nn.init.uniform_(self.readout, -1 / sqrt(self.states), 1 / sqrt(self.states))
        # Adds D and the output map, twice as wide as the model, and sets the traits.
        self.complete(site, state=(self.states, 2), gates=2, operations=Growth(1.0, log=True))

    def read(
        self,
        u: Float[Tensor, "b l d"],
        before: Complex[Tensor, "b p 2"] | None,
        keep: Bool[Tensor, "b l"] | None,
    ) -> tuple[list[Float[Tensor, "b l d"]], Complex[Tensor, "b p 2"] | None]:
        """Return y of each token of `u` in each direction, and (z, x) after the last token.

        `before` is (z, x) before `u`, None for zeros; `keep` is False for padding.
        """
        parts, after = [], None
        for side, (real, imaginary) in enumerate(self.readout.to(u.dtype)):
            order = reading_order(keep, backwards=bool(side))
            x, after = self.oscillators(order.reorder(u), before)
            read = F.linear(x.real, real) - F.linear(x.imag, imaginary)
            parts.append(order.back(read))
        return parts, after

    def mixed(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Apply GELU, by tanh as in the released code, and the gated map to each token."""
        return F.glu(self.out_proj(self.dropped(F.gelu(y, approximate="tanh"))), dim=-1)

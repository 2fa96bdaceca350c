"""LRU (linear recurrent unit): one complex diagonal linear recurrence for all channels.

    lambda = exp(-exp(nu) + i exp(theta)),  gamma trained, sqrt(1 - |lambda|^2) at the start
    x_t = lambda x_{t-1} + gamma (B u_t),   y_t = Re(C x_t) + D u_t
    g = gelu(y)
    out = (W1 g) sigmoid(W2 g)              (mixing=half_glu: g sigmoid(W g + b))

In the bidirectional form, a second C reads the same recurrence from the end, including the token
itself.

Cost       The layer takes O(n (d N + d^2)) operations, in about 3 sqrt(n) steps one after the
           other, and memory O(n N).
State      The state is x, N complex numbers in float32, at every length.
Source     Orvieto et al. 2023, arXiv:2303.06349, sections 3 and 4; sizes and rates of appendix D.
Notation   N is `states`; r_min, r_max and max_phase are `radius_min`, `radius_max`, `phase_max`.
Published  The paper's blocks have batch norm and no feed-forward network (feed_forward=none).
           Models are causal (bidirectional=false) on ListOps, text, retrieval and images, and
           bidirectional on Pathfinder and Path-X.
Optimiser  nu, theta, gamma and B learn at `rate` times the run's learning rate, without weight
           decay.
Differs    The paper leaves two choices open. Here B_re and B_im are drawn from N(0, 1 / (2 d)), and
           both directions are combined as in S5. Distances skip padding.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from math import pi

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Growth, Positive, Site, Tuning, options
from lra.models.ops.recurrent.layer import directions
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence
from lra.models.ops.state_space.float32_parameters import Float32Parameters
from lra.models.ops.state_space.layer import StateSpace, read_shared


class GatedMap(StrEnum):
    """The gated map after the recurrence: from two linear maps (glu), or from one (half_glu)."""

    glu = auto()
    half_glu = auto()


class RingRecurrence(Float32Parameters):
    """The recurrence x_t = lambda x_{t-1} + gamma (B u_t), with eigenvalues drawn from a ring.

    Args:
        width: Number of channels of u.
        states: Number of states, N.
        radius: Smallest and largest initial |lambda|.
        phase_max: Largest initial phase, in radians.
    """

    def __init__(
        self, width: int, states: int, radius: tuple[float, float], phase_max: float
    ) -> None:
        """Draw |lambda|^2 uniformly between the squared radii, and phases up to `phase_max`."""
        super().__init__()
        self.nu = nn.Parameter(torch.empty(states))
        self.theta = nn.Parameter(torch.empty(states))
        self.log_gamma = nn.Parameter(torch.empty(states))
        self.entry = nn.Parameter(torch.empty(2, states, width))
        smallest = torch.finfo(torch.float32).eps  # bound of draws, to avoid the logarithm of 0
        inner, outer = radius
        with torch.no_grad():
            draw = self.nu.uniform_(0, 1).clamp(smallest, 1 - smallest).double()
            # 1 - |lambda|^2, computed without |lambda|^2, which would round to 1
            rest = (1 - outer) * (1 + outer) + (1 - draw) * (outer - inner) * (outer + inner)
            self.nu.copy_((-torch.log1p(-rest) / 2).log())
            self.theta.copy_((self.theta.uniform_(0, 1).clamp(min=smallest) * phase_max).log())
            self.log_gamma.copy_(rest.log() / 2)
        nn.init.normal_(self.entry, std=(2 * width) ** -0.5)

    def forward(
        self, u: Float[Tensor, "b l d"], before: Complex[Tensor, "b n"] | None
    ) -> Complex[Tensor, "b l n"]:
        """Return the n states at every token of `u`; `before` is the state before (None: 0)."""
        nu, theta, log_gamma, entry = (
            part.to(u.dtype) for part in (self.nu, self.theta, self.log_gamma, self.entry)
        )
        factor = torch.polar((-nu.exp()).exp(), theta.exp())
        real, imaginary = (F.linear(u, part) for part in entry * log_gamma.exp()[:, None])
        inputs = torch.complex(real, imaginary)
        start = torch.zeros_like(inputs[:, 0]) if before is None else before
        return linear_recurrence(factor, inputs, start)


@options
class LRU(StateSpace):
    """A linear recurrent unit and the gated map behind it."""

    states: Count | None = None
    """State size of a layer in complex numbers, N; None: the width of the model."""
    radius_min: float = 0.0
    """Smallest initial |lambda| of an eigenvalue lambda."""
    radius_max: float = 1.0
    """Largest initial |lambda| of an eigenvalue lambda, at most 1."""
    phase_max: float = 2 * pi
    """Largest initial phase of an eigenvalue, in radians."""
    mixing: GatedMap = GatedMap.glu
    """Map over channels after the mixer's activation."""
    rate: Positive = 0.25
    """Learning rate of nu, theta, gamma and B, as a multiple of the run's learning rate."""
    version = 2  # magnitudes are drawn to the last digit

    def build(self, site: Site) -> None:
        """Make the recurrence and C; ValueError for a bad radius or phase."""
        width = site.width
        number = width if self.states is None else self.states
        if not 0 <= self.radius_min < self.radius_max <= 1:
            raise ValueError(
                "eigenvalues must lie within the unit circle, so set 0 <= radius_min < radius_max "
                f"<= 1: got radius_min={self.radius_min}, radius_max={self.radius_max}"
            )
        if not 0 < self.phase_max <= 2 * pi:
            raise ValueError(
                "phase_max, the largest initial phase in radians, must be above 0 and at most "
                f"2 pi: got {self.phase_max}"
            )
        sides = directions(site, bidirectional=self.bidirectional)
        radius = self.radius_min, self.radius_max
        self.recurrence = RingRecurrence(width, number, radius, self.phase_max)
        self.readout = nn.Parameter(torch.empty(sides, 2, width, number))
        nn.init.normal_(self.readout, std=number**-0.5)
        gates = 2 if self.mixing == GatedMap.glu else 1
        # Adds D and the output map, `gates` times as wide as the model, and sets the traits.
        self.complete(site, state=(number,), gates=gates, operations=Growth(1.0))

    def read(
        self,
        u: Float[Tensor, "b l d"],
        before: Complex[Tensor, "b n"] | None,
        keep: Bool[Tensor, "b l"] | None,
    ) -> tuple[list[Float[Tensor, "b l d"]], Complex[Tensor, "b n"] | None]:
        """Return y of each token of `u` in each direction, and the state after the last token.

        `before` is the state before `u`, None for zeros; `keep` is False for padding.
        """
        return read_shared(self.recurrence, self.readout.to(u.dtype), u, before, keep)

    def mixed(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return the output of the gated map for each token."""
        g = self.dropped(F.gelu(y))
        gates = self.out_proj(g)
        return F.glu(gates, dim=-1) if self.mixing == GatedMap.glu else g * gates.sigmoid()

    def tuning(self) -> Mapping[str, Tuning]:
        """Return the settings of lambda, gamma and B: a lower learning rate, no weight decay."""
        names = ("nu", "theta", "log_gamma", "entry")
        special = Tuning(learning_rate_scale=self.rate, weight_decay=0.0, matrix=False)
        return {f"recurrence.{name}": special for name in names}

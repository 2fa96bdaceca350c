"""S4, S4D and DSS: a linear state space for every channel, computed as a long convolution.

    x' = A x + B u,  y = 2 Re(C x) + D u           N / 2 complex numbers a channel
    diagonal  A = Lambda                           S4D, with B learned, by either rule:
              zoh       lambda = exp(dt A),  B_ = (lambda - 1) / A B
              bilinear  lambda = (1 + dt A / 2) / (1 - dt A / 2),  B_ = dt B / (1 - dt A / 2)
    dss_exp   A = Lambda, B = 1, zoh               DSS
    dplr      A = Lambda - P P*                    S4, bilinear:
              A_ = (1 - dt/2 A)^-1 (1 + dt/2 A),  B_ = (1 - dt/2 A)^-1 dt B
    x_t = A_ x_{t-1} + B_ u_t,  y_t = 2 Re sum_p C_p x_t,p + D u_t     (A_ = lambda where diagonal)
    out = GLU(W gelu(y) + b),  W: d -> 2 d          (mixing=linear: W gelu(y) + b, d -> d)

With K_t = 2 Re C A_^t B_ this is y = K * u + D u. In the bidirectional form, a second C makes the
kernel of later tokens, from lag 1 on, with the same A, B and dt.

Cost       The kernel takes O(n N d) operations, and O(d N^3 log n) more with dplr. For each
           sequence, the convolution takes O(d n log n) and the output map 4 n d^2. A decoding step
           takes O(N d), or O(N^2 d) with dplr.
State      The state is x, N real numbers for each channel.
Source     Gu et al. 2021, arXiv:2111.00396 (S4); Gu et al. 2022, arXiv:2206.11893 (S4D); Gupta et
           al. 2022, arXiv:2203.14343 (DSS, without its softmax form). Code: state-spaces/s4.
Notation   n_ssm is `independent`, dt_min and dt_max are `step_min` and `step_max`, disc is
           `discretisation`, B_clip is `input_limit`.
Published  The papers' blocks have batch norm and no feed-forward network (feed_forward=none).
Optimiser  A (Lambda, P), B and dt learn at `rate` and `rate_of_step` times the run's learning rate,
           without weight decay; C at `rate_of_readout` times; D with the run's settings.
Differs    With init=legs, B starts from positive numbers. The released code of dplr learns C (1 -
           A_^n) for the longest n instead of C. The code of DSS has a dt for each part of Lambda,
           one Lambda for all channels, and Re instead of 2 Re with C of variance 2. Distances skip
           padding inside a sequence.
"""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum, auto
from math import inf

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Growth, Need, Positive, Share, Site, Tuning, options
from lra.models.ops.channel_map import ChannelMixing, apply_channel_gate
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions, reading_order
from lra.models.ops.state_space.discretisation import Discretisation, check_steps
from lra.models.ops.state_space.dynamics import Dynamics, LowRankDynamics
from lra.models.ops.state_space.hippo import Initial, spectrum
from lra.models.ops.state_space.layer import StateSpace


class Matrices(StrEnum):
    """Kind of state matrix: that of S4D (diagonal), S4 (dplr) or DSS (dss_exp)."""

    diagonal = auto()
    dplr = auto()
    dss_exp = auto()


@options
class S4(StateSpace):
    """A state space for each channel, computed as a long convolution."""

    kernel: Matrices = Matrices.diagonal
    """Kind of state matrix: S4D (diagonal), S4 (dplr) or DSS (dss_exp)."""
    init: Initial = Initial.legs
    """Initial eigenvalues of A; see `lra.models.ops.state_space.hippo`."""
    input_limit: Positive | None = None
    """Largest initial value of B with init=legs (2 in the newest released code); None: HiPPO's
    values, up to about 0.6 N."""
    states: int = 64
    """State size of each channel in real numbers, N; must be even."""
    independent: int | None = None
    """Number of different pairs of A and B, which channels use in turn; None: one per channel."""
    discretisation: Discretisation = Discretisation.zoh
    """Rule that makes discrete matrices from A, B and the step dt."""
    step_min: float = 0.001
    """Smallest initial step size dt; steps are drawn log-uniformly, one per channel."""
    step_max: float = 0.1
    """Largest initial step size dt."""
    mixing: ChannelMixing = ChannelMixing.glu
    """Map over channels after the mixer's activation."""
    tied_dropout: bool = False
    """Whether dropout drops a channel at all positions of a sequence together."""
    convolution_dropout: Share = 0.0
    """Dropout rate of the state space's output, before GELU."""
    rate: Positive = 0.1
    """Learning rate of A and B, as a multiple of the run's learning rate."""
    rate_of_step: Positive = 0.1
    """Learning rate of the step dt, as a multiple of the run's learning rate."""
    rate_of_readout: Positive = 1.0
    """Learning rate of the output matrix C, as a multiple of the run's learning rate."""
    version = 2  # factors of kernel=diagonal and dss_exp are rounded once
    needs = (
        BOTH_WAYS,
        Need("discretisation", kernel=Matrices.diagonal),
        Need("init", kernel=(Matrices.diagonal, Matrices.dss_exp)),
        Need("init", words="kernel=diagonal (init=legs_ones sets B, which DSS fixes at 1)",
             holds=lambda _, o: (o.init, o.kernel) != (Initial.legs_ones, Matrices.dss_exp)),
        Need("input_limit", kernel=(Matrices.diagonal, Matrices.dplr)),
        Need("input_limit", init=Initial.legs),
        Need("tied_dropout", words="dropout above 0", holds=lambda _, chosen: chosen.dropout > 0),
    )  # fmt: skip

    def build(self, site: Site) -> None:
        """Draw A, B, dt and C; ValueError for states or steps that do not fit."""
        width = site.width
        number = width if self.independent is None else self.independent
        if self.states < 2 or self.states % 2:
            raise ValueError(
                "states must be even, because complex states come in conjugate pairs: got "
                f"states={self.states}; use 2, 4, 6 or more"
            )
        if number < 1 or width % number:
            raise ValueError(
                "independent (the number of different pairs of A and B, which the channels share) "
                f"must divide width: got independent={number}, width={width}"
            )
        check_steps(self.step_min, self.step_max)
        limit = inf if self.input_limit is None else self.input_limit
        sides = directions(site, bidirectional=self.bidirectional)
        rates, inputs = spectrum(self.init, self.states)
        steps = self.step_min, self.step_max
        self.dynamics: Dynamics
        if self.kernel == Matrices.dplr:
            # P of HiPPO's LegS is B / sqrt(2).
            self.dynamics = LowRankDynamics(
                rates, inputs.clamp(max=limit), inputs / 2**0.5,
                number=number, width=width, steps=steps,
            )  # fmt: skip
        else:
            self.dynamics = Dynamics(
                rates, None if self.kernel == Matrices.dss_exp else inputs.clamp(max=limit),
                number=number, width=width, steps=steps, rule=self.discretisation,
            )  # fmt: skip
        self.readout = nn.Parameter(torch.empty(sides, width, self.states // 2, 2))
        nn.init.normal_(self.readout, std=0.5**0.5)
        gates = 2 if self.mixing == ChannelMixing.glu else 1
        state = width, self.states // 2
        # Adds D and the output map, `gates` times as wide as the model, and sets the traits.
        self.complete(site, state=state, gates=gates, operations=Growth(1.0, log=True))
        if self.convolution_dropout > 0:
            self.traits = replace(self.traits, training_noise=True)

    def read(
        self,
        u: Float[Tensor, "b l d"],
        before: Complex[Tensor, "b d p"] | None,
        keep: Bool[Tensor, "b l"] | None,
    ) -> tuple[list[Float[Tensor, "b l d"]], Complex[Tensor, "b d p"] | None]:
        """Return y of each token of `u` (both directions added), and the state after the last.

        `before` is the state before `u`, None for zeros; `keep` is False for padding.
        """
        # Padding is moved after the real tokens, so that distances count real tokens only.
        order = reading_order(keep, backwards=False)
        readout = torch.view_as_complex(self.readout.to(u.dtype))
        y, after = self.dynamics(order.reorder(u).mT, readout, before)
        return [order.back(y.mT)], after

    def mixed(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Apply GELU and the map over channels to each token."""
        y = F.gelu(F.dropout(y, self.convolution_dropout, self.training))
        return apply_channel_gate(self.out_proj(self.dropped(y)), self.mixing)

    def tuning(self) -> Mapping[str, Tuning]:
        """Return settings of A, B and dt (lower rates, no weight decay) and of C (its rate)."""
        rates = self.dynamics.learning_rates(self.rate, self.rate_of_step)
        return {
            "readout": Tuning(learning_rate_scale=self.rate_of_readout),
            **{
                f"dynamics.{name}": Tuning(learning_rate_scale=rate, weight_decay=0.0, matrix=False)
                for name, rate in rates.items()
            },
        }

"""S5: one diagonal state space for all channels, of many inputs and outputs, computed by a scan.

    x' = A x + B u,  y = 2 Re(C x) + D u         A diagonal: P / 2 complex numbers, each with its dt
    zoh       lambda = exp(dt A),  B_ = (lambda - 1) / A B
    bilinear  lambda = (1 + dt A / 2) / (1 - dt A / 2),  B_ = dt B / (1 - dt A / 2)
    x_t = lambda x_{t-1} + B_ u_t,  y_t = 2 Re(C x_t) + D u_t
    g = gelu(y)
    half_glu1  out = g sigmoid(W g + b)          half_glu2  out = y sigmoid(W g + b)
    full_glu   out = (W1 g + b1) sigmoid(W2 g + b2)          none  out = g

In the bidirectional form, a second C reads the same recurrence from the end, including the token
itself.

Cost       The layer takes O(n (d P + d^2)) operations, in about 3 sqrt(n) steps one after the
           other.
State      The state is x, P real numbers, at every width of the model.
Source     Smith et al. 2023, arXiv:2208.04933; code: lindermanlab/S5.
Notation   P is `states`, J is `blocks`, C_init is `output`, clip_eigs is `clip_eigenvalues`,
           dt_global is `fast_step`; of its sets for the optimiser, standard is the default,
           BandCdecay is `decay_input` and BfastandCdecay is `fast_input`.
Starts     A starts from the eigenvalues of J blocks of HiPPO-N, the normal part of LegS, with
           eigenvectors V. B is V* times a real matrix of variance 1 / P. C is a complex matrix
           times V; its parts have variance 1 / (d P) (output=lecun) or 1 / P (truncated), both cut
           at two standard deviations, or it is drawn directly with variance 1 / 2 (complex). log dt
           is uniform, D is N(0, 1).
Published  The paper's blocks have batch norm and no feed-forward network (feed_forward=none).
Optimiser  A, dt and B learn at `rate` times the run's learning rate, without weight decay.
Differs    Distances skip padding.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from math import erf, exp, log, pi

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Growth, Need, Positive, Share, Site, Tuning, options
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions
from lra.models.ops.recurrent.linear_recurrence import linear_recurrence
from lra.models.ops.state_space.discretisation import Discretisation, check_steps, discretise
from lra.models.ops.state_space.float32_parameters import Float32Parameters
from lra.models.ops.state_space.hippo import legs_vectors
from lra.models.ops.state_space.layer import StateSpace, read_shared

HIGHEST_REAL = -1e-4
"""Largest real part of an eigenvalue with `clip_eigenvalues`."""


class Output(StrEnum):
    """Initial distribution of the output matrix C."""

    lecun = auto()
    truncated = auto()
    complex = auto()


class GatedMixing(StrEnum):
    """The map over channels after the state space."""

    half_glu1 = auto()
    half_glu2 = auto()
    full_glu = auto()
    none = auto()


def truncated_normal(*shape: int, variance: float) -> Tensor:
    """Return normal numbers truncated at two standard deviations, with this variance.

    Truncation reduces the variance, so the standard deviation before it is larger.
    """
    uniform = torch.empty(shape).uniform_(-1, 1) * erf(2**0.5)
    deviation = (variance / (1 - 4 * exp(-2) / (erf(2**0.5) * (2 * pi) ** 0.5))) ** 0.5
    numbers: Tensor = uniform.erfinv() * 2**0.5 * deviation
    return numbers


class SharedDynamics(Float32Parameters):
    """The recurrence x_t = lambda x_{t-1} + B_ u_t, with the parameters A, B and dt.

    Args:
        width: Number of channels of u.
        states: Number of real states, P.
        blocks: Number of HiPPO-N blocks, J.
        steps: Smallest and largest initial dt.
        rule: Discretisation rule of A and dt.
        clip: Whether real parts of A are clipped to at most `HIGHEST_REAL`.
    """

    def __init__(
        self,
        width: int,
        states: int,
        blocks: int,
        *,
        steps: tuple[float, float],
        rule: Discretisation,
        clip: bool,
    ) -> None:
        """Draw A and B for J equal blocks of HiPPO-N, and B in the basis of eigenvectors."""
        super().__init__()
        self.rule, self.clip = rule, clip
        frequency, vectors = legs_vectors(states // blocks)
        # All eigenvalues of HiPPO-N have the real part -1/2.
        self.real = nn.Parameter(torch.full((states // 2,), -0.5))
        self.frequency = nn.Parameter(torch.empty(states // 2))
        self.entry = nn.Parameter(torch.empty(2, states // 2, width))
        self.log_step = nn.Parameter(torch.empty(states // 2))
        with torch.no_grad():
            self.frequency.copy_(frequency.repeat(blocks))
            inputs = truncated_normal(blocks, states // blocks, width, variance=1 / states)
            basis = vectors.mH.to(inputs.device)
            entry = (basis @ inputs.to(basis.dtype)).flatten(0, 1)
            self.entry.copy_(torch.stack((entry.real, entry.imag)))
        nn.init.uniform_(self.log_step, log(steps[0]), log(steps[1]))

    def forward(
        self, u: Float[Tensor, "b l d"], before: Complex[Tensor, "b p"] | None
    ) -> Complex[Tensor, "b l p"]:
        """Return the p states at every token of `u`; `before` is the state before (None: 0)."""
        real, frequency, entry, log_step = (
            part.to(u.dtype) for part in (self.real, self.frequency, self.entry, self.log_step)
        )
        rates = torch.complex(real.clamp(max=HIGHEST_REAL) if self.clip else real, frequency)
        factor, gain = discretise(rates, log_step.exp(), self.rule)
        weight = gain[:, None] * torch.complex(*entry)
        inputs = torch.complex(F.linear(u, weight.real), F.linear(u, weight.imag))
        start = torch.zeros_like(inputs[:, 0]) if before is None else before
        return linear_recurrence(factor, inputs, start)


def readout(output: Output, sides: int, width: int, states: int, blocks: int) -> nn.Parameter:
    """Draw C for each of `sides` directions: real and imaginary parts, [s 2 d p]."""
    if output == Output.complex:
        return nn.Parameter(torch.empty(sides, 2, width, states // 2).normal_(std=0.5**0.5))
    variance = 1 / states if output == Output.truncated else 1 / (width * states)
    real, imaginary = truncated_normal(2, sides, width, blocks, states // blocks, variance=variance)
    _, vectors = legs_vectors(states // blocks)
    c = torch.complex(real, imaginary)
    c = (c @ vectors.to(c.device, c.dtype)).flatten(-2)
    return nn.Parameter(torch.stack((c.real, c.imag), dim=1))


@options
class S5(StateSpace):
    """A state space with many inputs and outputs, and a gated map after it."""

    states: int = 256
    """State size of a layer in real numbers, P."""
    blocks: int = 8
    """Number of HiPPO-N blocks that give the initial eigenvalues, J; P / J must be even."""
    discretisation: Discretisation = Discretisation.zoh
    """Rule that makes discrete matrices from A, B and the step dt."""
    step_min: float = 0.001
    """Smallest initial step size dt; steps are drawn log-uniformly, one per pair of states."""
    step_max: float = 0.1
    """Largest initial step size dt."""
    output: Output = Output.lecun
    """Initial distribution of the output matrix C."""
    clip_eigenvalues: bool = False
    """Whether real parts of eigenvalues are clipped to at most -0.0001."""
    mixing: GatedMixing = GatedMixing.half_glu1
    """Map over channels after the mixer's activation."""
    dropout: Share = 0.0
    """Dropout rate of the channels after GELU; a channel is dropped at all tokens of a sequence."""
    rate: Positive = 0.25
    """Learning rate of A, dt and B, as a multiple of the run's learning rate."""
    decay_input: bool = False
    """Whether the run's weight decay applies to the input matrix B."""
    fast_input: bool = False
    """Whether the input matrix B uses the run's learning rate and weight decay."""
    fast_step: bool = False
    """Whether the step dt uses the run's learning rate and weight decay."""
    tied_dropout = True
    needs = (BOTH_WAYS, Need("decay_input", fast_input=False))

    def build(self, site: Site) -> None:
        """Draw A, B, dt and C; ValueError for states, blocks or steps that do not fit."""
        if self.states < 2 or self.states % 2:
            raise ValueError(
                "states must be even, because complex states come in conjugate pairs: got "
                f"states={self.states}; use 2, 4, 6 or more"
            )
        if self.blocks < 1 or self.states % (2 * self.blocks):
            raise ValueError(
                "states / blocks, the size of a HiPPO-N block, must be an even number: got "
                f"states={self.states}, blocks={self.blocks}; use blocks=1, or a multiple of "
                "2 * blocks for states"
            )
        check_steps(self.step_min, self.step_max)
        self.dynamics = SharedDynamics(
            site.width, self.states, self.blocks, steps=(self.step_min, self.step_max),
            rule=self.discretisation, clip=self.clip_eigenvalues,
        )  # fmt: skip
        sides = directions(site, bidirectional=self.bidirectional)
        self.readout = readout(self.output, sides, site.width, self.states, self.blocks)
        gates = {GatedMixing.full_glu: 2, GatedMixing.none: 0}.get(self.mixing, 1)
        # Adds D and the output map, `gates` times as wide as the model, and sets the traits.
        self.complete(site, state=(self.states // 2,), gates=gates, operations=Growth(1.0))

    def read(
        self,
        u: Float[Tensor, "b l d"],
        before: Complex[Tensor, "b p"] | None,
        keep: Bool[Tensor, "b l"] | None,
    ) -> tuple[list[Float[Tensor, "b l d"]], Complex[Tensor, "b p"] | None]:
        """Return y of each token of `u` in each direction, and the state after the last token.

        `before` is the state before `u`, None for zeros; `keep` is False for padding.
        """
        # Twice, because each complex state stands for a conjugate pair: y = 2 Re(C x).
        return read_shared(self.dynamics, 2 * self.readout.to(u.dtype), u, before, keep)

    def mixed(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Apply the gated map to each token, with GELU by tanh as in the released code."""
        g: Tensor = self.dropped(F.gelu(y, approximate="tanh"))
        if self.mixing == GatedMixing.none:
            return g
        gates: Tensor = self.out_proj(g)
        if self.mixing == GatedMixing.full_glu:
            return F.glu(gates, dim=-1)
        return (y if self.mixing == GatedMixing.half_glu2 else g) * gates.sigmoid()

    def tuning(self) -> Mapping[str, Tuning]:
        """Return settings of A, dt and B: a lower rate, no weight decay, unless options differ."""
        slow = Tuning(learning_rate_scale=self.rate, weight_decay=0.0, matrix=False)
        tunings = {"real": slow, "frequency": slow}
        if not self.fast_step:
            tunings["log_step"] = slow
        if self.decay_input:
            tunings["entry"] = Tuning(learning_rate_scale=self.rate)
        elif not self.fast_input:
            tunings["entry"] = slow
        return {f"dynamics.{name}": tuning for name, tuning in tunings.items()}

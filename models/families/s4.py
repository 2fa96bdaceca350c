"""S4D: a linear state space for every channel, whose convolution is as long as the sequence.

    x' = A x + B u,  y = 2 Re(C x) + D u           A diagonal: N / 2 complex numbers a channel
    zoh       lambda = exp(dt A),  B_ = (lambda - 1) / A B
    bilinear  lambda = (1 + dt A / 2) / (1 - dt A / 2),  B_ = dt B / (1 - dt A / 2)
    x_t = lambda x_{t-1} + B_ u_t,  y_t = 2 Re sum_p C_p x_t,p + D u_t
    out = GLU(W gelu(y) + b),  W: d -> 2 d          (mixing=linear: W gelu(y) + b, d -> d)

With K_t = 2 Re sum_p C_p B_p lambda_p^t that is y = K * u + D u. Two-sided: a second C makes the
kernel of later tokens, from lag 1 on, with the same A, B and dt.

Cost       O(n N d) operations for the kernel, once for all rows, and O(d n log n) a row for the
           convolution; 4 n d^2 for the map behind it. A step of a stream takes O(N d).
State      x: N real numbers a channel in float32, whatever the length.
Source     Gu et al. 2022, arXiv:2206.11893 (S4D); Gu et al. 2021, arXiv:2111.00396 (S4), whose A
           has a part of low rank besides: that form is not here. Code: state-spaces/s4.
Notation   n_ssm is `independent`, dt_min and dt_max are `step_min` and `step_max`, disc is
           `discretisation`; real parts of A are -exp(log_decay), which keeps them negative.
Published  in blocks without a network behind the mixer (feed_forward=none), with batch norm.
Optimiser  A, B and dt learn at `rate` and `rate_of_step` times the run's rate, without decay of
           weights; neither C nor D departs from the run's settings.
Differs    B of init=legs starts from positive numbers: C is drawn from a law that no turn of an
           eigenvector changes. Tokens of interior padding are left out of the distances.
"""

from collections.abc import Mapping
from enum import StrEnum, auto
from math import log
from typing import cast

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from models.mixer import (
    Family,
    Flow,
    Growth,
    Layout,
    Site,
    State,
    Traits,
    Tuning,
    Unsupported,
    blanked,
)
from models.multi_head import projection
from models.ops.convolution.long import long_convolution
from models.ops.numerics import full_precision, sum_dtype
from models.ops.recurrent.layer import BOTH_WAYS, check_share, reading
from models.ops.state_space.hippo import Initial, spectrum
from models.ops.state_space.kernels import polynomial, power, vandermonde
from models.ops.state_space.unrounded import Unrounded


class Discretisation(StrEnum):
    """How a step of time becomes a factor: a held input, or the trapezoidal rule."""

    zoh = auto()
    bilinear = auto()


class ChannelMixing(StrEnum):
    """The map behind the state spaces: gated, or plain."""

    glu = auto()
    linear = auto()


def discretise(
    rates: Complex[Tensor, "d p"],
    entry: Complex[Tensor, "d p"],
    step: Float[Tensor, " d"],
    rule: Discretisation,
) -> tuple[Complex[Tensor, "d p"], Complex[Tensor, "d p"]]:
    """Return lambda and B_ from A, B and dt."""
    change = step[:, None] * rates
    if rule == Discretisation.zoh:
        # exp(z) - 1 without the difference, which loses what short steps change.
        less = torch.expm1(change)
        return less + 1, less / rates * entry
    below = 1 - change / 2
    return (1 + change / 2) / below, step[:, None] / below * entry


def state_space(
    u: Float[Tensor, "b d l"],
    factor: Complex[Tensor, "d p"],
    entry: Complex[Tensor, "d p"],
    readout: Complex[Tensor, "s d p"],
    before: Complex[Tensor, "b d p"] | None = None,
) -> tuple[Float[Tensor, "b d l"], Complex[Tensor, "b d p"] | None]:
    """Return what each token reads, and the states behind the last where those before are given.

    Args:
        u: Inputs, 0 at padding.
        factor: lambda.
        entry: B_.
        readout: C, and besides that of later tokens where both sides are seen.
        before: States before the first token, of one direction.
    """
    length = u.shape[-1]
    y = long_convolution(u, *vandermonde(readout * entry, factor, length))
    if before is None:
        return y, None
    y = y + vandermonde(readout[0] * factor * before, factor, length)
    return y, power(factor, length) * before + entry * polynomial(u.flip(-1), factor)


class Dynamics(Unrounded):
    """A, B and dt.

    Args:
        rates: Eigenvalues to start from.
        inputs: B of each.
        number: How many A and B there are.
        width: Channels, each with its own dt.
        steps: Shortest and longest dt to start from.
    """

    def __init__(
        self,
        rates: Complex[Tensor, " p"],
        inputs: Float[Tensor, " p"],
        *,
        number: int,
        width: int,
        steps: tuple[float, float],
    ) -> None:
        super().__init__()
        self.repeats = width // number
        self.log_decay = nn.Parameter(torch.empty(number, len(rates)))
        self.frequency = nn.Parameter(torch.empty(number, len(rates)))
        self.entry = nn.Parameter(torch.empty(number, len(rates), 2))
        self.log_step = nn.Parameter(torch.empty(width))
        with torch.no_grad():
            self.log_decay.copy_((-rates.real).log())
            self.frequency.copy_(rates.imag)
            self.entry.copy_(torch.stack((inputs, torch.zeros_like(inputs)), dim=-1))
        # From the middle: numbers near 0 are finer, and phases are large multiples of dt.
        self.middle, reach = log(steps[1] * steps[0]) / 2, log(steps[1] / steps[0]) / 2
        nn.init.uniform_(self.log_step, -reach, reach)

    def forward(
        self, rule: Discretisation, dtype: torch.dtype
    ) -> tuple[Complex[Tensor, "d p"], Complex[Tensor, "d p"]]:
        """Return lambda and B_ of every channel, in the complex numbers of a real `dtype`."""
        decay, frequency, entry = (
            part.to(dtype).repeat(self.repeats, *(1 for _ in part.shape[1:]))
            for part in (self.log_decay, self.frequency, self.entry)
        )
        rates = torch.complex(-decay.exp(), frequency)
        step = (self.middle + self.log_step.to(dtype)).exp()
        return discretise(rates, torch.view_as_complex(entry), step, rule)


class S4(Family):
    """State spaces with diagonal matrices.

    Args:
        site: Where it is built.
        init: Eigenvalues to start from, see `models.ops.state_space.hippo`.
        states: N, the real numbers that each channel remembers; an even number.
        independent: How many A and B there are, which channels take in turns; None: one for each.
        discretisation: How A and dt become factors.
        step_min: Shortest dt to start from, drawn log-uniformly for each channel.
        step_max: Longest dt to start from.
        bidirectional: Whether later tokens are seen, where they may be.
        mixing: The map behind.
        dropout: Share of what the state spaces give that is dropped before the map.
        rate: Learning rate of A and B, in multiples of the run's.
        rate_of_step: Learning rate of dt, likewise.

    Raises:
        ValueError: A value is out of range.
    """

    needs = (BOTH_WAYS,)

    def __init__(
        self,
        site: Site,
        *,
        init: Initial = Initial.legs,
        states: int = 64,
        independent: int | None = None,
        discretisation: Discretisation = Discretisation.zoh,
        step_min: float = 0.001,
        step_max: float = 0.1,
        bidirectional: bool = True,
        mixing: ChannelMixing = ChannelMixing.glu,
        dropout: float = 0.0,
        rate: float = 0.1,
        rate_of_step: float = 0.1,
    ) -> None:
        super().__init__()
        width = site.width
        number = width if independent is None else independent
        if states < 2 or states % 2:
            raise ValueError(f"states come in pairs: got states={states}; use 2, 4, 6 or more")
        if number < 1 or width % number:
            raise ValueError(
                f"channels take state spaces in turns, so independent must divide width: got "
                f"independent={number}, width={width}"
            )
        if not 0 < step_min <= step_max:
            raise ValueError(
                f"steps must be positive, the shortest first: got step_min={step_min}, "
                f"step_max={step_max}"
            )
        for name, value in (("rate", rate), ("rate_of_step", rate_of_step)):
            if not value > 0:
                raise ValueError(f"{name} must be positive: got {value}")
        check_share("dropout", dropout)
        self.discretisation, self.mixing, self.dropout = discretisation, mixing, dropout
        self.rate, self.rate_of_step = rate, rate_of_step
        directions = 2 if bidirectional and not site.causal else 1
        rates, inputs = spectrum(init, states)
        self.dynamics = Dynamics(
            rates, inputs, number=number, width=width, steps=(step_min, step_max)
        )
        self.readout = nn.Parameter(torch.empty(directions, width, states // 2, 2))
        self.skip = nn.Parameter(torch.empty(width))
        nn.init.normal_(self.readout, std=0.5**0.5)
        nn.init.normal_(self.skip)
        gates = 2 if mixing == ChannelMixing.glu else 1
        self.out_proj = projection(width, gates * width, bias=True)
        self.traits = Traits(
            supports=frozenset({"keep", "start"}),
            causal=directions == 1,
            operations=Growth(1.0, log=True),
            training_noise=dropout > 0,
        )

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix along the length, then over channels."""
        return self.extend(Flow(x), layout).x

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; with state None, from an empty one."""
        if flow.state is not None and layout.keep is not None:
            raise ValueError("extend with a state takes full rows: pass keep=None")
        x = blanked(flow.x, layout, self.traits)
        # Padding goes behind the real tokens: else distances would count what lies between.
        order = reading(layout.keep, backwards=False)
        u = order.of(x).mT.to(sum_dtype(x))
        with full_precision(x):
            y, state = self._read(u, flow.state)
        y = blanked(order.back(y.mT).to(x.dtype), layout, self.traits)
        y = self.out_proj(F.dropout(F.gelu(y), self.dropout, self.training))
        if self.mixing == ChannelMixing.glu:
            y = F.glu(y, dim=-1)
        return flow._replace(x=y, state=state)

    def _read(
        self, u: Float[Tensor, "b d l"], state: State
    ) -> tuple[Float[Tensor, "b d l"], State]:
        """Return y of every token, and the state behind the last where there is one before."""
        factor, entry = self.dynamics(self.discretisation, u.dtype)
        readout = torch.view_as_complex(self.readout.to(u.dtype))
        before = None if state is None else torch.view_as_complex(cast(Tensor, state).to(u.dtype))
        y, after = state_space(u, factor, entry, readout, before)
        if state is not None and after is not None:
            state = torch.view_as_real(after).to(cast(Tensor, state).dtype)
        return y + self.skip.to(u.dtype)[:, None] * u, state

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros, real and imaginary part of each state, whatever the memory."""
        del memory
        if not self.traits.causal:
            raise Unsupported("a state along time needs a causal mixer: this one sees all tokens")
        like = self.readout
        return like.new_zeros(batch_size, *like.shape[1:], dtype=sum_dtype(like))

    def tuning(self) -> Mapping[str, Tuning]:
        """Let A, B and dt learn slowly and without decay."""
        rates = dict.fromkeys(("log_decay", "frequency", "entry"), self.rate)
        rates["log_step"] = self.rate_of_step
        return {
            f"dynamics.{name}": Tuning(learning_rate_scale=rate, weight_decay=0.0, matrix=False)
            for name, rate in rates.items()
        }

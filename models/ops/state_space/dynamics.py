"""Parameters A, B and dt of a layer's state spaces, and the outputs for given inputs.

    diagonal   x' = Lambda x + B u             by either rule of `Discretisation`
    low rank   x' = (Lambda - P P*) x + B u    by the bilinear rule, see `low_rank`

Real parts of Lambda are -exp(log_decay), which keeps them negative.
"""

from collections.abc import Mapping
from math import log

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from lra.models.ops.convolution.long import long_convolution
from lra.models.ops.state_space.discretisation import Discretisation, discretise
from lra.models.ops.state_space.float32_parameters import Float32Parameters
from lra.models.ops.state_space.kernels import polynomial, power, vandermonde
from lra.models.ops.state_space.low_rank import LowRank, low_rank_state_space


def state_space(
    u: Float[Tensor, "b d l"],
    factor: Complex[Tensor, "d p"],
    entry: Complex[Tensor, "d p"],
    readout: Complex[Tensor, "s d p"],
    before: Complex[Tensor, "b d p"] | None = None,
) -> tuple[Float[Tensor, "b d l"], Complex[Tensor, "b d p"] | None]:
    """Return y_t = 2 Re(C x_t) with x_t = factor x_{t-1} + entry u_t, and the last states.

    Args:
        u: Inputs, 0 at padding.
        factor: Factor of each of p complex states per channel.
        entry: Gain of the input of each state.
        readout: C; with s = 2, the second one reads later tokens.
        before: States before the first token, for s = 1; None: no states are returned.
    """
    length = u.shape[-1]
    y = long_convolution(u, *vandermonde(readout * entry, factor, length))
    if before is None:
        return y, None
    y = y + vandermonde(readout[0] * factor * before, factor, length)
    return y, power(factor, length) * before + entry * polynomial(u.flip(-1), factor)


class Dynamics(Float32Parameters):
    """Lambda, B and dt of diagonal state spaces.

    Args:
        rates: Initial Lambda.
        inputs: Initial B; None: 1, which is not learned.
        number: Number of different Lambda and B, which channels use in turn.
        width: Number of channels, each with a dt.
        steps: Shortest and longest initial dt.
        rule: Rule of discretisation.
    """

    def __init__(
        self,
        rates: Complex[Tensor, " p"],
        inputs: Float[Tensor, " p"] | None,
        *,
        number: int,
        width: int,
        steps: tuple[float, float],
        rule: Discretisation,
    ) -> None:
        super().__init__()
        self.repeats, self.rule = width // number, rule
        self.log_decay = nn.Parameter(torch.empty(number, len(rates)))
        self.frequency = nn.Parameter(torch.empty(number, len(rates)))
        self.entry = None if inputs is None else _pairs(inputs, number)
        self.log_step = nn.Parameter(torch.empty(width))
        with torch.no_grad():
            self.log_decay.copy_((-rates.real).log())
            self.frequency.copy_(rates.imag)
        # Stored relative to the middle, because floating-point numbers near 0 are more precise.
        self.middle, reach = log(steps[1] * steps[0]) / 2, log(steps[1] / steps[0]) / 2
        nn.init.uniform_(self.log_step, -reach, reach)

    def forward(
        self,
        u: Float[Tensor, "b d l"],
        readout: Complex[Tensor, "s d p"],
        before: Complex[Tensor, "b d p"] | None,
    ) -> tuple[Float[Tensor, "b d l"], Complex[Tensor, "b d p"] | None]:
        """Return the result of `state_space` for these parameters, in the precision of `u`."""
        # Computed in float64, because the t-th power of a factor has t times its error.
        rates, entry, step = self.continuous(torch.float64)
        exact = discretise(rates, step[:, None], self.rule)
        factor, gain = (part.to(readout.dtype) for part in exact)
        return state_space(u, factor, gain * entry.to(gain.dtype), readout, before)

    def continuous(
        self, dtype: torch.dtype
    ) -> tuple[Complex[Tensor, "d p"], Complex[Tensor, "d p"], Float[Tensor, " d"]]:
        """Return Lambda, B and dt of every channel, in the precision of a real `dtype`."""
        decay, frequency = (
            part.to(dtype).repeat(self.repeats, 1) for part in (self.log_decay, self.frequency)
        )
        rates = torch.complex(-decay.exp(), frequency)
        entry = torch.ones_like(rates)
        if self.entry is not None:
            entry = self._of_channels(self.entry, dtype)
        return rates, entry, (self.middle + self.log_step.to(dtype)).exp()

    def _of_channels(
        self, pairs: Float[Tensor, "n p 2"], dtype: torch.dtype
    ) -> Complex[Tensor, "d p"]:
        """Return n sets of complex parameters, repeated for the d channels."""
        return torch.view_as_complex(pairs.to(dtype).repeat(self.repeats, 1, 1))

    def learning_rates(self, of_matrices: float, of_steps: float) -> Mapping[str, float]:
        """Return learning rates by parameter, from those of A and B and of dt."""
        return {
            name: of_steps if name == "log_step" else of_matrices
            for name, _ in self.named_parameters()
        }


class LowRankDynamics(Dynamics):
    """State spaces with A = Lambda - P P*; for HiPPO-LegS, P starts as B / sqrt(2).

    `low_rank` is the initial P; the other arguments are those of `Dynamics`.
    """

    def __init__(
        self,
        rates: Complex[Tensor, " p"],
        inputs: Float[Tensor, " p"],
        low_rank: Float[Tensor, " p"],
        *,
        number: int,
        width: int,
        steps: tuple[float, float],
    ) -> None:
        rule = Discretisation.bilinear
        super().__init__(rates, inputs, number=number, width=width, steps=steps, rule=rule)
        self.low_rank = _pairs(low_rank, number)

    def forward(
        self,
        u: Float[Tensor, "b d l"],
        readout: Complex[Tensor, "s d p"],
        before: Complex[Tensor, "b d p"] | None,
    ) -> tuple[Float[Tensor, "b d l"], Complex[Tensor, "b d p"] | None]:
        """Return the result of `low_rank_state_space`, in the precision of `u`."""
        rates, entry, step = self.continuous(u.dtype)
        low_rank = self._of_channels(self.low_rank, u.dtype)
        return low_rank_state_space(u, LowRank(rates, low_rank, entry, step), readout, before)


def _pairs(values: Float[Tensor, " p"], number: int) -> nn.Parameter:
    """Return real values as a parameter of complex pairs, repeated `number` times."""
    pairs = nn.Parameter(torch.empty(number, len(values), 2))
    with torch.no_grad():
        pairs.copy_(torch.stack((values, torch.zeros_like(values)), dim=-1))
    return pairs

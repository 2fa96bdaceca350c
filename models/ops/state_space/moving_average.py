"""The damped exponential moving average of each channel, with N states.

    h_t = q h_{t-1} + p beta x_t,   p = sigma(delta),  q = 1 - p sigma(alpha)
    y_t = sum_N gamma h_t / sqrt(N) + omega x_t

Outputs are a convolution by K_t = sum_N gamma p beta q^t / sqrt(N). A second average may run from
the end; both count the token itself.

Cost       O(n N d) operations for the kernel, once for all rows, and O(n d log n) a row.
Source     Ma et al. 2022, arXiv:2209.10655, section 3.1; initial values of the code with it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.ops.convolution.long import long_convolution
from lra.models.ops.state_space.float32_parameters import Float32Parameters
from lra.models.ops.state_space.kernels import exponential, polynomial, power


class MovingAverage(Float32Parameters):
    """The damped exponential moving average of each channel, with N states.

    Args:
        width: Number of channels.
        states: Number of states of a channel, N.
        directions: 1, or 2 if a second average reads from the end.
        truncation: Number of lags of the kernel; None: all.
    """

    no_matrices = ("delta", "alpha", "beta", "gamma")

    def __init__(self, width: int, states: int, directions: int, truncation: int | None) -> None:
        super().__init__()
        shape = (directions, width, states)
        self.delta, self.alpha, self.beta, self.gamma = (
            nn.Parameter(torch.empty(shape)) for _ in range(4)
        )
        self.omega = nn.Parameter(torch.empty(width))
        self.truncation = truncation
        for part, deviation in ((self.delta, 0.2), (self.alpha, 0.2), (self.beta, 0.02)):
            nn.init.normal_(part, std=deviation)
        for part in (self.gamma, self.omega):
            nn.init.normal_(part)
        with torch.no_grad():
            self.beta.add_(1 - 2 * (torch.arange(states) % 2))  # adds 1, -1, 1, -1, ...

    def forward(
        self, x: Float[Tensor, "b l d"], before: Float[Tensor, "b d s"] | None
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b d s"] | None]:
        """Return y = sum_N gamma h / sqrt(N) + omega x, and the last h if `before` is given."""
        length, u = x.shape[1], x.mT
        delta, alpha, beta, gamma = (
            part.to(x.dtype) for part in (self.delta, self.alpha, self.beta, self.gamma)
        )
        p = delta.sigmoid()
        q, entry, readout = 1 - p * alpha.sigmoid(), p * beta, gamma * gamma.shape[-1] ** -0.5
        lags = length if self.truncation is None else min(length, self.truncation)
        kernel, *from_end = (
            exponential(*parts, lags) for parts in zip(readout * entry, q, strict=True)
        )
        if from_end:  # both averages read the token itself, so lag 0 has the sum of both
            kernel = torch.cat((kernel[:, :1] + from_end[0][:, :1], kernel[:, 1:]), dim=1)
        y = long_convolution(u, kernel, *(backward[:, 1:] for backward in from_end))
        after = None
        if before is not None:
            y = y + exponential(readout[0] * q[0] * before, q[0], length)
            after = power(q[0], length) * before + entry[0] * polynomial(u.flip(-1), q[0])
        return y.mT + self.omega.to(x.dtype) * x, after

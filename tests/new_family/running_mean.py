"""The mean of the values so far, gated: attention with equal weights.

    y_i = W_o (g(x_i) * m_i),   m_i = sum_j v_j / n_i,   v = W_v x,   g = sigmoid(W_g x)

over the n_i real tokens j <= i when causal, over all of them otherwise. Without the gate (`none`)
it is what exact attention computes where all scores are equal.

Cost       6 l D^2 operations for the projections and l D additions; memory l D. State: the sum of
           the values and their number, D + 1 numbers.
Source     the uniform attention of Zhang, Xiong and Su 2018, arXiv:1805.00631, equation 1, there
           with a network behind the mean; its gates are of another form.
Notation   the paper's y, g are x, m.
"""

from enum import StrEnum, auto

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Family, Flow, Layout, Site, State, Traits, Unsupported, blanked
from lra.models.ops.numerics import sum_dtype


class Gate(StrEnum):
    """What the mean is multiplied by."""

    sigmoid = auto()
    """A learned number between 0 and 1 for each channel."""
    none = auto()
    """Nothing."""


class RunningMean(Family):
    """The mean of the values between two projections, with a gate before the second.

    Args:
        gate: what the mean is multiplied by.
    """

    def __init__(self, site: Site, *, gate: Gate = Gate.sigmoid) -> None:
        super().__init__()
        self.traits = Traits(causal=site.causal, sees_order=site.causal)
        self.values = nn.Linear(site.width, site.width)
        self.gate = nn.Linear(site.width, site.width) if gate == Gate.sigmoid else None
        self.out = nn.Linear(site.width, site.width)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix along the length."""
        return self.extend(Flow(x), layout).x

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from the sum and the number of values so far."""
        x = blanked(flow.x, layout, self.traits)
        values = self.values(x).to(sum_dtype(x))
        real = torch.ones_like(values[..., :1])
        if layout.keep is not None:
            real = layout.keep[..., None].to(values)
        added = torch.cat((values * real, real), dim=-1)
        total = added.cumsum(1) if self.traits.causal else added.sum(1, keepdim=True)
        if isinstance(flow.state, Tensor):
            total = total + flow.state[:, None]
        mean = (total[..., :-1] / total[..., -1:].clamp(min=1.0)).to(x.dtype).expand_as(x)
        if self.gate is not None:
            mean = mean * self.gate(x).sigmoid()
        state = total[:, -1].clone() if flow.state is not None else None
        return flow._replace(x=self.out(mean), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros: a sum of any number of values has one size."""
        if not self.traits.causal:
            raise Unsupported("the mean over all tokens has no state: choose a causal task")
        weight = self.values.weight
        return weight.new_zeros(batch_size, len(weight) + 1, dtype=sum_dtype(weight))

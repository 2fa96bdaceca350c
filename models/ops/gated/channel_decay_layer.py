"""A delta rule whose state decays in each key channel, with gates made by maps of low rank.

    log alpha_t = -A_h softplus(W_2 W_1 x_t + b)      or bound sigma(A_h (W_2 W_1 x_t + b))
    y = W_O (sigma(W_4 W_3 x + c) * norm_h(o))

A family says what its tokens read and write (`rule_inputs`). A_h is drawn uniformly from
(1, 16), or is 1 with a `bound`; b is drawn so that softplus(b) is log-uniform in [0.001, 0.1].
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Site
from lra.models.ops.gated.delta_layer import DeltaRule
from lra.models.ops.gated.head_norm import Gate
from lra.models.ops.gated.layer import by_head
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype


class ChannelDecay(DeltaRule):
    """A delta rule with a decay of each key channel.

    Options:
        gate_rank: Rank of the maps that predict gates; None: the head width.
        bound: Logarithm of the strongest decay, below 0; None: unbounded.
        gate_bias: Whether the output gate has the bias c.
    """

    gate_rank: int | None
    bound: float | None = None
    gate_bias = True
    gate = Gate.sigmoid
    undecayed = ("log_rate", "step_bias")

    def build(self, site: Site) -> None:
        """Make projections and gates."""
        self.rank = site.head_width if self.gate_rank is None else self.gate_rank
        super().build(site)

    def add_gates(self, site: Site) -> None:
        """Make the parameters of the decays: log A, two maps of low rank, and a bias."""
        self.decay_down = projection(site.width, self.rank, bias=False)
        self.decay_up = projection(self.rank, site.inner_width, bias=False)
        self.log_rate = nn.Parameter(torch.zeros(site.heads))
        if self.bound is None:
            with torch.no_grad():
                self.log_rate.uniform_(1, 16).log_()
        self.step_bias = nn.Parameter(step_biases(site.inner_width))

    def add_output_gate(self, site: Site, width: int) -> None:
        """Make the two maps of the output gate, the second with a bias unless it is off."""
        self.gate_down = projection(site.width, self.rank, bias=False)
        self.gate_up = projection(self.rank, width, bias=self.gate_bias)

    def output_gate(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l e"]:
        """Return the logits of the gate that multiplies the normed heads."""
        gate: Tensor = self.gate_up(self.gate_down(x))
        return gate

    def log_decays(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Return log alpha of each head, token and key channel, in float32 or float64."""
        with full_precision(x):
            dtype = sum_dtype(x)
            steps = self.decay_up(self.decay_down(x)).to(dtype) + self.step_bias.to(dtype)
            rates = self.log_rate.to(dtype).exp()[:, None, None]
            if self.bound is None:
                return -rates * F.softplus(by_head(steps, self.heads))
            return self.bound * (rates * by_head(steps, self.heads)).sigmoid()

"""Kimi Delta Attention: the delta rule with a data-dependent decay of each key channel.

    S_t = Diag(alpha_t) S_(t-1) + beta_t k_t (v_t - (Diag(alpha_t) S_(t-1))^T k_t)^T
    o_t = S_t^T q_t / sqrt(k),   y = W_O (sigma(W_4 W_3 x + c) * norm_h(o))

alpha_t = exp(-A_h softplus(W_2 W_1 x_t + b)), where A_h is drawn uniformly from (1, 16) and b so
that softplus(b) is log-uniform in [0.001, 0.1]. With a `bound` < 0, alpha_t = exp(bound sigma(A_h
(W_2 W_1 x_t + b))), and A_h starts at 1. Queries, keys, values and beta are those of `delta_net`.

Cost       The projections take 8 d^2 + 4 d (r + g) operations a token, where r and g are the ranks
           of both gates, and each head takes those of `delta_product` with a decay of each channel.
           State: k v numbers a head, and the last 3 inputs of each convolution.
Source     Kimi Team 2025, arXiv:2510.26692, equations 1 and 7 to 10, and its layer in
           flash-linear-attention.
Notation   the paper's ranks equal the width of a head.
Published  The paper's models are causal, with convolutions of 4 taps, heads of 128 channels and
           without biases. One layer of full attention follows three such layers, without positions:
           model.backbone.positions=none.
Differs    The bias c is part of the layer in flash-linear-attention, where it starts at 0; the
           released model lacks it.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Site, options
from lra.models.multi_head import projection
from lra.models.ops.gated.delta_layer import DeltaRule
from lra.models.ops.gated.head_norm import Gate
from lra.models.ops.gated.layer import by_head
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.numerics import full_precision, sum_dtype


@options
class KimiDelta(DeltaRule):
    """A delta rule with a decay of each key channel."""

    convolution: int | None = 4
    gate_rank: Count | None = None
    """Rank of the maps that predict gates; None: the head width."""
    negative_eigenvalues: bool = False
    bound: float | None = None
    """Logarithm of the strongest decay, below 0; None: unbounded."""
    gate = Gate.sigmoid
    chunk: Count = 32
    version = 2  # gradients of strong decays are precise
    undecayed = ("log_rate", "step_bias")

    def build(self, site: Site) -> None:
        """Make projections and gates; ValueError for a `bound` of 0 or more."""
        if self.bound is not None and not self.bound < 0:
            raise ValueError(
                "bound, the logarithm of the strongest decay, must be below 0, or null: got "
                f"{self.bound}"
            )
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
        """Make the two maps of the output gate, the second with a bias."""
        self.gate_down = projection(site.width, self.rank, bias=False)
        self.gate_up = projection(self.rank, width, bias=True)

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

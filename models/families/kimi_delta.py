"""Kimi Delta Attention: the delta rule with a data-dependent decay of each key channel.

    S_t = Diag(alpha_t) S_(t-1) + beta_t k_t (v_t - (Diag(alpha_t) S_(t-1))^T k_t)^T
    o_t = S_t^T q_t / sqrt(k),   y = W_O (sigma(W_4 W_3 x + c) * norm_h(o))

alpha_t = exp(-A_h softplus(W_2 W_1 x_t + b)), where A_h is drawn uniformly from (1, 16) and b so
that softplus(b) is log-uniform in [0.001, 0.1]. With a `bound` < 0, alpha_t = exp(bound sigma(A_h
(W_2 W_1 x_t + b))), and A_h starts at 1. Queries, keys, values and beta are those of `delta_net`.

With `precondition` = x, what a token writes is scaled by its keys' past: the key that writes is
M_t * k_t, where M_t is between 1 / x and x and smaller for channels with a large second moment.

Cost       The projections take 8 d^2 + 4 d (r + g) operations a token, where r and g are the ranks
           of both gates, and each head takes those of `delta_product` with a decay of each channel.
           State: k v numbers a head, k more with `precondition`, and the last 3 inputs of each
           convolution.
Source     Kimi Team 2025, arXiv:2510.26692, equations 1 and 7 to 10, and its layer in
           flash-linear-attention; preconditioned: Tumma et al. 2026, arXiv:2604.21100.
Notation   the paper's ranks equal the width of a head.
Published  The paper's models are causal, with convolutions of 4 taps, heads of 128 channels and
           without biases. One layer of full attention follows three such layers, without positions:
           model.backbone.positions=none.
Differs    The bias c is part of the layer in flash-linear-attention, where it starts at 0; the
           released model lacks it (`gate_bias=false`).
"""

from lra.models.mixer import Count, Site, options
from lra.models.ops.gated.channel_decay_layer import ChannelDecay
from lra.models.ops.gated.precondition import check_range


@options
class KimiDelta(ChannelDecay):
    """A delta rule with a decay of each key channel."""

    convolution: int | None = 4
    gate_rank: Count | None = None
    """Rank of the maps that predict gates; None: the head width."""
    negative_eigenvalues: bool = False
    bound: float | None = None
    """Logarithm of the strongest decay, below 0; None: unbounded."""
    gate_bias: bool = True
    """Whether the output gate has the bias c, which the released model lacks."""
    precondition: float | None = None
    """Largest factor, 1 to 2, by which the second moment of a key channel scales what is written
    there (1.5 in the paper); None: none."""
    chunk: Count = 32
    version = 2  # gradients of strong decays are precise

    def build(self, site: Site) -> None:
        """Make projections and gates; ValueError for a `bound` or factor out of range."""
        if self.bound is not None and not self.bound < 0:
            raise ValueError(
                "bound, the logarithm of the strongest decay, must be below 0, or null: got "
                f"{self.bound}"
            )
        check_range(self.precondition, negative_eigenvalues=self.negative_eigenvalues)
        super().build(site)
        self.add_preconditioner(site, self.precondition, slowest=1)

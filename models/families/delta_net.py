"""DeltaNet: linear attention that updates its state by the delta rule.

    S_t = S_(t-1) + beta_t k_t (v_t - S_(t-1)^T k_t)^T,   o_t = S_t^T q_t / sqrt(k)
    y = W_O norm_h(o),   beta_t = sigma(W_b x_t)

A token replaces part of the value that the state stores at its key, instead of adding to it. q, k
and v are W x, convolved over 4 tokens and passed through SiLU. q and k are then divided by their
Euclidean norm, so that I - beta k k^T has the eigenvalue 1 - beta in the direction of k and 1 in
all others. With `negative_eigenvalues` beta is doubled, so that 1 - beta reaches down to -1. This
is a reflection, with which states can count modulo 2. With `householders` > 1 (DeltaProduct) a
token writes that many times, each time with a separate key, value and beta, and reads once. A
product of reflections can be a rotation.

Cost       The projections take 8 d^2 operations a token with n = 1 householder, and each head takes
           those of n `delta_product`s. State: k v numbers a head, and the last 3 inputs of each
           convolution.
Source     Yang et al. 2024, arXiv:2406.06484, and its layer in flash-linear-attention; negative
           eigenvalues: Grazzi et al. 2024, arXiv:2411.12537; products: Siems et al. 2025,
           arXiv:2502.10297. The rule: Schlag et al. 2021, arXiv:2102.11174.
Notation   the paper's d_k, d_v are widths of one head; v / k is `value_expansion`; n_h of
           DeltaProduct is `householders`.
Published  The paper's models are causal, with convolutions of 4 taps and without biases. Their
           blocks have a gated feed-forward network, RMSNorm and no positions:
           model.backbone.positions=none.
"""

from lra.models.mixer import Count, options
from lra.models.ops.gated.delta_layer import DeltaRule, KeyNorm, StreamActivation
from lra.models.ops.gated.head_norm import Gate


@options
class DeltaNet(DeltaRule):
    """A delta rule by head in a state that does not decay."""

    value_expansion: Count = 1
    convolution: int | None = 4
    householders: Count = 1
    negative_eigenvalues: bool = False
    gate: Gate = Gate.none
    activation: StreamActivation = StreamActivation.silu
    key_norm: KeyNorm = KeyNorm.l2
    chunk: Count = 32

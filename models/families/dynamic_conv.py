"""Dynamic convolution: every token predicts the kernels of its depthwise convolution.

    z = GLU(x W_1 + b_1)
    o_i = sum_t softmax(z_i W_h)_t z_(i + t - P),    y = o W_2 + b_2

with W_h: d -> K for each head, and P = K - 1 in a causal layer, else floor((K - 1) / 2). The
channels of a head are adjacent.

Cost       The projections take 6 n d^2 operations (4 n d^2 without the gate), the kernels 2 n d H
           K, and the convolution 2 n K d (2 n (K + 31) d as it is computed here). State: the last K
           - 1 gated tokens.
Source     Wu et al. 2019, arXiv:1901.10430, equation 6. Initialisation and the places of the gate
           and of dropout are those of fairseq (modules/dynamic_convolution.py,
           models/lightconv.py).
Published  The settings are those of `light_conv`; this form gives the paper's best scores in
           translation.
Differs    The differences are those of `light_conv`. If a kernel is longer than the text, the
           causal convolution of fairseq normalises only the taps within the text. Here all taps are
           normalised, as in the step-by-step form of that code.
"""

from lra.models.ops.convolution.layer import DynamicConvolution


class DynamicConv(DynamicConvolution):
    """A gated convolution with one kernel per token and head."""

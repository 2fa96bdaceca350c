"""Dynamic convolution: every token predicts the kernels of its depthwise convolution.

    z = GLU(x W_1 + b_1)
    o_i = sum_t softmax(z_i W_h)_t z_(i + t - P),    y = o W_2 + b_2

with W_h: d -> K for each head, and P = K - 1 in a causal layer, else floor((K - 1) / 2). The
channels of a head are adjacent.

Cost       6 n d^2 operations for the projections (4 without the gate), 2 n d H K for the kernels
           and 2 n K d for the convolution (2 n (K + 31) d as it is computed here). State: the last
           K - 1 gated tokens.
Source     Wu et al. 2019, arXiv:1901.10430, equation 6. Initialisation and the places of the gate
           and of dropout as in fairseq (modules/dynamic_convolution.py, models/lightconv.py).
Published  as `light_conv`; this form gives the paper's best scores in translation.
Differs    as `light_conv`. Where a kernel is longer than the text, a causal convolution of that
           code normalises the taps within the text; here all taps are normalised, as in the
           step-by-step form of that code.
"""

from lra.models.ops.convolution.layer import DynamicConvolution


class DynamicConv(DynamicConvolution):
    """A gated convolution with one kernel per token and head."""

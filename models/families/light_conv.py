"""Lightweight convolution: a depthwise convolution with one normalised kernel per head.

    z = GLU(x W_1 + b_1)
    o_i = sum_t softmax(W_h)_t z_(i + t - P),    y = o W_2 + b_2

where each head has one kernel W_h of K taps, the same for all tokens, and P = K - 1 in a causal
layer, else floor((K - 1) / 2). The channels of a head are adjacent.

Cost       The projections take 6 n d^2 operations (4 n d^2 without the gate), and the convolution 2
           n K d (2 n (K + 31) d as it is computed here). State: the last K - 1 gated tokens.
Source     Wu et al. 2019, arXiv:1901.10430, equations 3 to 5. Initialisation and the places of the
           gate and of dropout are those of fairseq (modules/lightweight_convolution.py,
           models/lightconv.py).
Published  The paper's models have kernels 3, 7, 15, 31, 31, 31, 31 in seven layers, 16 heads at
           width 1,024, and post-norm. The number of convolved channels is `encoder_conv_dim` in
           that code and `inner_width` here.
Differs    A kernel longer than the text is normalised over all its taps; one form of the kernel in
           fairseq is normalised over the taps within the text. `renorm_padding` of fairseq, off by
           default, is unsupported.
"""

from lra.models.ops.convolution.layer import LightConvolution


class LightConv(LightConvolution):
    """A gated convolution with one kernel per head."""

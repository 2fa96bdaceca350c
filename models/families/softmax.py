"""Softmax attention written out: the reference that every other family is compared with.

    o_i = sum_j p_ij v_j,    p_ij = exp(q_i . k_j / sqrt(d)) / sum_j' exp(q_i . k_j' / sqrt(d))

where j runs over the keys that i may see; a query that may see none gets 0.

Cost: 4 n^2 D operations, and H n^2 weights kept for backward (D width of all heads, H heads), once
more with dropout: the score matrix is materialised on purpose; `sdpa` is the same function without
it.

Source: Vaswani et al. 2017, arXiv:1706.03762.

With ALiBi positions (Press et al. 2022, arXiv:2108.12409) a score loses m_h |i - j|, m_h the slope
of its head; with T5's (arXiv:1910.10683) it gains the learned number of its distance's bucket.

Differences from the paper: none in the function. In half precision, and under autocast, the
products with keys and values are half, the softmax between them is float32.

`variant: lra`, the Long Range Arena's code: a padded token gives the mean of the values at all
positions, since a bias of -1e10 on all of its scores leaves nothing else in float32. No weight of
that mean is dropped in training.
"""

from lra.models.mixer import Growth
from lra.models.ops.exact import ExactAttention, softmax_attention


class SoftmaxAttention(ExactAttention):
    """Multi-head softmax attention with materialised scores."""

    attend_by = staticmethod(softmax_attention)
    kept = Growth(2.0)

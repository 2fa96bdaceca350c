"""Standard softmax attention with an explicit score matrix: the reference for every other family.

    o_i = sum_j p_ij v_j,    p_ij = exp(q_i . k_j / sqrt(d)) / sum_j' exp(q_i . k_j' / sqrt(d))

where j runs over the keys that i may attend to; a query without any such key gives 0.

Cost: the forward pass takes 4 n^2 D operations and stores H n^2 weights for backward, or twice as
many with dropout (D is the width of all heads, H the number of heads). The score matrix is stored
on purpose; `sdpa` computes the same function without storing it.

Source: Vaswani et al. 2017, arXiv:1706.03762.

With ALiBi positions (Press et al. 2022, arXiv:2108.12409), m_h |i - j| is subtracted from a score,
m_h being the slope of its head. With T5 positions (arXiv:1910.10683), a learned number for the
bucket of the distance is added.

Differences from the paper: the function is the same. In half precision and under autocast, the
products with keys and values are computed in half precision, and the softmax in float32.

`variant: lra`, the Long Range Arena's code: a padded token gives the mean of the values at all
positions, since a bias of -1e10 on all of its scores makes them equal in float32. Attention dropout
is not applied to that mean.
"""

from lra.models.mixer import Growth
from lra.models.ops.exact import ExactAttention, softmax_attention


class SoftmaxAttention(ExactAttention):
    """Multi-head softmax attention with materialised scores."""

    attend_by = staticmethod(softmax_attention)
    kept = Growth(2.0)

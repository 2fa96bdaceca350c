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

from collections.abc import Mapping
from typing import Any

from models.mixer import Growth, Need, Site, Variant
from models.multi_head import MultiHead
from models.ops.exact import ExactCore, softmax_attention


class SoftmaxAttention(MultiHead):
    """Multi-head softmax attention with materialised scores."""

    needs = (Need("variant", causal=False),)

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return what `variant=lra` fixes."""
        lra = options.variant == Variant.lra
        return {"output_gate": False, "qk_norm": False} if lra else {}

    def __init__(
        self,
        site: Site,
        *,
        variant: Variant = Variant.faithful,
        bias: bool = True,
        output_gate: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(
            site,
            ExactCore(site, softmax_attention, memory=Growth(2.0)),
            bias=bias,
            mean_at_padding=variant == Variant.lra,
            output_gate=output_gate,
            qk_norm=qk_norm,
        )

"""Grouped-query attention (GQA): groups of query heads share one head of keys and values.

    o_h = softmax(Q_h K_g' / sqrt(k)) V_g,    g = floor(h G / H)

for H query heads and G heads of keys and values. G = 1 is multi-query attention (MQA), G = H is
softmax attention.

Cost       The cost is that of `sdpa`, but the projections of keys and values take 4 n d k G
           operations. The state, and what a decoding step reads of it, has G / H of the size that
           it has in softmax attention.
Source     Shazeer 2019, arXiv:1911.02150 (G = 1); Ainslie et al. 2023, arXiv:2305.13245.
Published  The paper's model is T5 XXL with 64 query heads in 8 groups. The paper makes it from a
           trained model by averaging heads of keys and of values, which is unsupported here.
"""

from lra.models.mixer import Growth, Site
from lra.models.multi_head import HeadCounts, MultiHead
from lra.models.ops.exact import ExactCore
from lra.models.ops.grouped_heads import grouped_sdpa


class GroupedQueryAttention(MultiHead):
    """Multi-head attention with fewer heads of keys and values.

    Args:
        key_value_heads: Number of key and value heads; must divide the number of query heads.
        sink: Whether each head of queries has a learned logit in the denominator of its softmax,
            which takes weight from all keys.

    Raises:
        ValueError: `key_value_heads` does not divide the number of query heads.
    """

    version = 2  # draws only the projections that it uses
    turns_alone = True

    undecayed = ("core.sinks",)

    def __init__(
        self,
        site: Site,
        *,
        key_value_heads: int = 1,
        bias: bool = True,
        output_gate: bool = False,
        qk_norm: bool = False,
        joint_qk_norm: bool = False,
        sink: bool = False,
        head_gate: bool = False,
    ) -> None:
        """Make as many heads of keys and values as chosen; all other heads are those of `site`."""
        if qk_norm and joint_qk_norm:
            raise ValueError(
                "qk_norm=true norms each head, and joint_qk_norm=true all heads together: got "
                "both; set one of them to false"
            )
        if output_gate and head_gate:
            raise ValueError(
                "output_gate=true gates each channel, and head_gate=true each head: got both; set "
                "one of them to false"
            )
        if key_value_heads < 1 or site.heads % key_value_heads:
            raise ValueError(
                "key_value_heads must divide the number of query heads: got "
                f"key_value_heads={key_value_heads}, heads={site.heads}; set 1 for multi-query "
                "attention"
            )
        heads = HeadCounts(site.heads, key_value_heads, key_value_heads, site.heads)
        core = ExactCore(site, grouped_sdpa, memory=Growth(1.0), sink=sink)
        super().__init__(
            site, core, bias=bias, heads=heads, output_gate=output_gate, qk_norm=qk_norm,
            joint_qk_norm=joint_qk_norm, head_gate=head_gate,
        )  # fmt: skip

"""Query and key projections of separate heads, written as projections that all heads share.

    Q_i K_j'  =  ((x W_Q) * m_i) (y W_K)'  +  1 (y c_i)'  +  what is the same for every key

for head i, x the tokens of queries and y those of keys: m_i picks the head's own columns of W_Q and
W_K, and c_i = W_K,i' b_Q,i is what the bias of its queries adds. What is the same for every key of
a query, which the bias of the keys adds alone, the softmax takes out.

Source: Cordonnier et al. 2020, arXiv:2006.16362, sections 3.1 and 3.2.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class SharedHeads(NamedTuple):
    """The weights of `lra.models.families.collaborative`, with r = D~ shared columns.

    Head i has the matrix sum_t mixing_it queries_t' keys_t in place of W_Q,i' W_K,i.
    """

    queries: Float[Tensor, "r d"]
    """`q_proj.weight`: shared by all heads, without a bias."""
    keys: Float[Tensor, "r d"]
    """`k_proj.weight`: the same."""
    mixing: Float[Tensor, "h r"]
    """`mixing`: the weight of each shared column in the scores of each head."""
    content: Float[Tensor, "h d"]
    """`content.weight`: its product with a key's token is added to all scores of that key."""

    def scaled(self, head_width: int) -> "SharedHeads":
        """Return these weights, scaled for heads whose scores are divided by sqrt(head_width).

        The family divides scores by sqrt(D~ / h), for D~ columns; mixing and content correct this.
        """
        heads, width = self.mixing.shape
        factor = (width / heads / head_width) ** 0.5
        return self._replace(mixing=self.mixing * factor, content=self.content * factor)


def shared_heads(
    queries: Float[Tensor, "w d"],
    keys: Float[Tensor, "w d"],
    query_bias: Float[Tensor, " w"] | None,
    heads: int,
) -> SharedHeads:
    """Return shared projections with exactly the scores of separate heads, by copying weights.

    There are as many shared columns as all heads have. The bias of keys is not needed, because the
    softmax ignores it.

    Args:
        queries: Weight of the query projections of all heads, one below the other.
        keys: Weight of the key projections of all heads.
        query_bias: Bias of the query projections; None: they have none.
        heads: Number of heads, which divides w.
    """
    width = len(queries) // heads
    content = keys.new_zeros(heads, keys.shape[1])
    if query_bias is not None:
        content = torch.einsum(
            "hk,hkd->hd", query_bias.view(heads, width), keys.view(heads, width, -1)
        )
    return SharedHeads(
        queries.clone(), keys.clone(), head_blocks(heads, len(queries)).to(keys), content
    )


def head_blocks(heads: int, width: int) -> Float[Tensor, "h w"]:
    """Return 1 where a shared column belongs to a head, else 0; each head gets adjacent columns.

    The last head may get fewer columns than the others.

    Raises:
        ValueError: The last head would get no column.
    """
    columns = -(-width // heads)
    if columns * (heads - 1) >= width:
        raise ValueError(
            f"with {columns} shared columns for each head, some of {heads} heads get none of the "
            f"{width} columns: choose key_width as a multiple of {heads}, or mixing=normal or "
            "ones"
        )
    owner = torch.arange(width, device="cpu") // columns
    return (owner == torch.arange(heads, device="cpu")[:, None]).float()

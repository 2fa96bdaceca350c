"""Projections of heads side by side, written as projections that all heads share.

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
    """What `lra.models.families.collaborative` holds, D~ the width of the shared keys.

    A factorisation of the h matrices W_Q,i' W_K,i into D~ terms, queries_t' keys_t times mixing_it,
    gives another one; `scaled` makes its scores those of the heads it stands for.
    """

    queries: Float[Tensor, "r d"]
    """`q_proj.weight`: shared by all heads, without a bias."""
    keys: Float[Tensor, "r d"]
    """`k_proj.weight`: the same."""
    mixing: Float[Tensor, "h r"]
    """`mixing`: what head i makes of the products of each shared column."""
    content: Float[Tensor, "h d"]
    """`content.weight`: what a key adds to the scores of head i with any query."""

    def scaled(self, head_width: int) -> "SharedHeads":
        """Return the factors of a layer whose scores are to be divided by sqrt(head_width).

        The family divides by sqrt(D~ / h): mixing and content make up for it.
        """
        heads, width = self.mixing.shape
        by = (width / heads / head_width) ** 0.5
        return self._replace(mixing=self.mixing * by, content=self.content * by)


def shared_heads(
    queries: Float[Tensor, "w d"],
    keys: Float[Tensor, "w d"],
    query_bias: Float[Tensor, " w"] | None,
    heads: int,
) -> SharedHeads:
    """Return the same scores through shared projections, of as many columns as all heads have.

    Exact, by copying; the bias of the keys has no part in it.

    Args:
        queries: Weight of the projection to the queries of all heads, one below the other.
        keys: The same of keys.
        query_bias: Of the queries; None: they have none.
        heads: Their number, which divides w.
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
    """Return ones where a shared column belongs to a head: neighbouring ones, the last has fewest.

    Raises:
        ValueError: A head is left without any.
    """
    each = -(-width // heads)
    if each * (heads - 1) >= width:
        raise ValueError(
            f"with {each} shared columns for each head, some of {heads} heads get none of the "
            f"{width} columns: choose key_width as a multiple of {heads}, or mixing=normal or "
            "ones"
        )
    owner = torch.arange(width, device="cpu") // each
    return (owner == torch.arange(heads, device="cpu")[:, None]).float()

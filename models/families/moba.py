"""MoBA (mixture of block attention): each query attends to its block and the best-scoring others.

    o_i = sum_j p_ij v_j over the keys j <= i of chosen blocks, p = softmax of q_i k_j / sqrt(d)

A block has C tokens. Query i scores a block by q_i · mean(k of the block). It attends to its
current block and to the t - 1 earlier blocks with the highest scores; each head chooses separately.
The choice has no gradient, and the projections are the only parameters.

Cost       Each head takes 4 t C k operations per token, plus at most 2 C k for filling up blocks,
           and 2 k n / C for the scores of n / C blocks. State: keys and values of all blocks that
           contain the remembered tokens.
Source     Lu et al. 2025, arXiv:2502.13189, section 2, and the code, MoonshotAI/MoBA.
Notation   the paper's B and k are `block` and `top`; both count the current block.
Published  The paper's models are causal, with blocks of 512 tokens and top 3 at 8,192 tokens, in
           layers like those of Llama with rotary positions.
Differs    If scores are equal, the earlier block is chosen. Blocks skip padding, and each document
           starts a new block. The bidirectional form is an addition of this project: a query
           attends to the current block and the t - 1 best of all others.
"""

from jaxtyping import Float
from torch import Tensor, nn

from lra.models.mixer import Count, Growth, Layout, Site, State, Traits
from lra.models.multi_head import MultiHead
from lra.models.ops.exact import refuse_in_stream, sdpa, visibility
from lra.models.ops.sparse import block_table
from lra.models.ops.sparse.block_choice import chosen_by_mean
from lra.models.ops.sparse.block_table import BlockTable, laid_out
from lra.models.ops.sparse.chosen_blocks import chosen_attention


class MobaCore(nn.Module):
    """Attention of each query to its block and to the blocks that it chooses by their mean keys."""

    def __init__(self, site: Site, *, block: int, top: int) -> None:
        """Set the traits: quadratic, because each query scores all n / C blocks.

        Attention is sparse only if `top` blocks do not hold the longest input; without this, or in
        blocks of one token, order has no effect. A state stores whole blocks (`summarises`).
        """
        super().__init__()
        self.block, self.top, self.dropout = block, top, site.attention_dropout
        sparse = top * block < site.max_length
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),
            causal=site.causal,
            operations=Growth(2.0),
            reach=block - 1 if top == 1 else None,
            row_stochastic=True,
            weight_dropout=True,
            summarises=block > 1 and top > 1,
            sees_order=site.causal or (sparse and block > 1),
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Choose blocks for each query, and attend to them; exact attention if all are chosen."""
        length, causal = q.shape[2], self.traits.causal
        if self.top * self.block >= length:
            visible = visibility(layout, length, causal=causal, device=q.device)
            return sdpa(q, k, v, causal=causal, visible=visible, dropout=self.rate())
        table = laid_out(layout, length, self.block, causal=causal, like=q)
        return self.chosen(q, table.contents(k), table.contents(v), table)

    def chosen(
        self,
        q: Float[Tensor, "b h l k"],
        keys: Float[Tensor, "b h s k"],
        values: Float[Tensor, "b h s v"],
        table: BlockTable,
    ) -> Float[Tensor, "b h l v"]:
        """Choose blocks by `keys`, and attend to them; keys and values are in slots of `table`."""
        causal = self.traits.causal
        chosen = chosen_by_mean(q, keys, table, self.top, causal=causal)
        return chosen_attention(q, keys, values, chosen, table, causal=causal, dropout=self.rate())

    def rate(self) -> float:
        """Return the current dropout probability: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return an empty memory of the last blocks."""
        return block_table.empty_table(shape, self.block, like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Let each new query attend to remembered and new blocks up to itself."""
        refuse_in_stream(layout)
        blocks = block_table.append_blocks(state, k, v, self.block)
        keys, values = blocks.keys.to(q.dtype), blocks.values.to(v.dtype)
        return self.chosen(q, keys, values, blocks.table), blocks.state


class Moba(MultiHead):
    """Multi-head attention to chosen blocks.

    Args:
        block: Number of tokens of a block, C.
        top: Number of blocks to which a query attends, including the current block.
    """

    def __init__(self, site: Site, *, block: Count = 64, top: Count = 4, bias: bool = True) -> None:
        super().__init__(site, MobaCore(site, block=block, top=top), bias=bias)

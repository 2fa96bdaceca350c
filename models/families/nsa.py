"""Native Sparse Attention: branches of compressed blocks, selected blocks and a sliding window.

    o_i = sum_b g_ib Attention(q_i, K_b, V_b),    g_i = sigmoid(W_g x_i), three numbers a head

compressed  one key and one value for each c tokens, one every d of them, which a query can use once
            it has passed all c: for the first c - 1 tokens this branch is 0
chosen      the tokens of t blocks of C: the first one, the last two up to the query, and those with
            the largest weights in the compressed branch. These weights are added up over the
            strides of d tokens, over what covers each stride, and over the heads that share keys.
window      the last w tokens, including the query's

Cost       Each query head takes 4 k (n / d + t C + w) operations per token, plus at most 4 k C for
           filling up blocks, and those of the projections. State: keys and values of all branches,
           in all blocks that contain the remembered tokens, and C / d compressed ones for each such
           block.
Source     Yuan et al. 2025, arXiv:2502.11089, section 3; choices and the mean as in
           fla-org/native-sparse-attention.
Notation   the paper's l is `compressed_block`, its d `stride`, its l' `block`, its n `top`, its w
           `window`.
Published  The paper's models are causal, with block=64 compressed_block=32 stride=16 top=16
           window=512 compression=network, and 4 heads of keys for 64 heads of queries, at 8,192
           tokens.
Differs    By default l = d = l' (fla's form). With compression=network, the network has 4 k inner
           channels. If weights are equal, the earlier block is chosen. Blocks skip padding, and
           each document starts a new block. Rotary positions rotate queries, and keys before they
           are compressed. The bidirectional form is an addition of this project: all blocks are
           compressed and may be chosen, and the window reaches to both sides.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Positions,
    Site,
    State,
    Traits,
    Whole,
    blanked,
)
from lra.models.multi_head import APPLIED, biases, projection
from lra.models.ops.exact import refuse_in_stream
from lra.models.ops.sparse import block_table
from lra.models.ops.sparse.block_compression import BlockCompression, BlockMean, BlockNetwork
from lra.models.ops.sparse.block_table import BlockTable, laid_out
from lra.models.ops.sparse.chosen_blocks import chosen_attention
from lra.models.ops.sparse.compressed_blocks import Choice, compressed_attention, neighbours
from lra.models.positions import rotate


class NativeSparseAttention(Family):
    """Multi-head attention to compressed blocks, chosen blocks and a window.

    Args:
        block: Number of tokens of a block, C.
        compressed_block: Number of tokens per compressed key, c; None: as many as a block has.
        stride: Number of tokens from one compressed key to the next, d; None: `compressed_block`,
            without overlap.
        top: Number of blocks that a query selects, t, including those of `first` and `local`.
        first: Number of blocks at the start of the sequence that are always selected.
        local: Number of blocks, up to and including the query's, that are always selected.
        window: Number of tokens of the sliding window, w, including the query's.
        key_value_heads: Number of key and value heads; must divide the number of query heads.
        own_keys: Whether each branch has separate key and value projections.
        compression: How a block is compressed to one key and one value.
        bias: Whether projections have biases, unless the backbone sets this (`qkv_bias`,
            `output_bias`).

    Raises:
        ValueError: A number is too small, or heads do not divide.
    """

    def __init__(
        self,
        site: Site,
        *,
        block: Count = 32,
        compressed_block: int | None = None,
        stride: int | None = None,
        top: int = 4,
        first: Whole = 1,
        local: Count = 2,
        window: Count = 128,
        key_value_heads: int = 1,
        own_keys: bool = True,
        compression: BlockCompression = BlockCompression.mean,
        bias: bool = False,
    ) -> None:
        super().__init__()
        size = block if compressed_block is None else compressed_block
        step = size if stride is None else stride
        if not 1 <= size <= block:
            raise ValueError(
                f"compressed_block must be at least 1 and at most block={block}: got {size}; "
                "change one of them, or leave it at null"
            )
        if step < 1 or size % step or block % step:
            raise ValueError(
                f"stride must divide compressed_block={size} and block={block}: got {step}; 1 "
                "always works"
            )
        if top < first + local:
            raise ValueError(
                f"top is the number of all chosen blocks, those of first={first} and "
                f"local={local} included: got {top}; use {first + local} or more"
            )
        if key_value_heads < 1 or site.heads % key_value_heads:
            raise ValueError(
                "key_value_heads must divide the number of query heads: got "
                f"key_value_heads={key_value_heads}, heads={site.heads}"
            )
        self.rotary = site.positions == Positions.rotary
        self.width = width = site.head_width
        if self.rotary and width % 2:
            raise ValueError(
                f"rotary positions need an even head width: got {width}; change heads, head_width, "
                "or positions"
            )
        self.heads, self.groups, self.branches = site.heads, key_value_heads, 3 if own_keys else 1
        self.block, self.window, self.dropout = block, window, site.attention_dropout
        self.numbers, self.compressed_block, self.stride = (top, first, local), size, step
        with_biases = biases(site, bias, default=False)
        self.q_proj = projection(site.width, site.inner_width, bias=with_biases.qkv)
        self.key_value_proj = projection(
            site.width, 2 * self.branches * key_value_heads * width, bias=with_biases.qkv
        )
        self.gates = projection(site.width, 3 * site.heads, bias=False)
        self.out_proj = projection(site.inner_width, site.width, bias=with_biases.output)
        network = compression == BlockCompression.network
        self.compress_keys, self.compress_values = (
            BlockNetwork(key_value_heads, size, width) if network else BlockMean() for _ in range(2)
        )
        near = window < site.max_length
        chosen = top * block < site.max_length
        within = size > 1 and (network or step < site.max_length)
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),
            positions=frozenset({Positions.rotary.value}),
            options=APPLIED,
            causal=site.causal,
            operations=Growth(2.0),
            weight_dropout=True,
            summarises=block > 1,
            sees_order=site.causal or self.rotary or near or chosen or within,
        )

    def split(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width of all heads into heads."""
        return x.view(*x.shape[:2], -1, self.width).transpose(1, 2)

    def project(
        self, x: Float[Tensor, "b l d"], layout: Layout
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b g l k"], Float[Tensor, "b g l k"]]:
        """Return queries, and keys and values with the branches concatenated along the heads."""
        q, (k, v) = self.split(self.q_proj(x)), self.split(self.key_value_proj(x)).chunk(2, dim=1)
        if self.rotary:
            q, k = rotate(q, layout.start), rotate(k, layout.start)
        return q, k, v

    def compressed(
        self, keys: Float[Tensor, "b g s k"], values: Float[Tensor, "b g s k"], table: BlockTable
    ) -> tuple[Float[Tensor, "b c m k"], Float[Tensor, "b c m k"]]:
        """Return one key and one value every `stride` slots, by the first branch."""
        size, step = self.compressed_block, self.stride
        filled = table.filled_windows(size, step, causal=self.traits.causal)
        keys, values = (
            table.windows(x[:, : self.groups], size, step, filled) for x in (keys, values)
        )
        return self.compress_keys(keys, filled), self.compress_values(values, filled)

    def outputs(
        self,
        q: Float[Tensor, "b h l k"],
        keys: Float[Tensor, "b g s k"],
        values: Float[Tensor, "b g s k"],
        compressed: tuple[Float[Tensor, "b c m k"], Float[Tensor, "b c m k"]],
        table: BlockTable,
    ) -> list[Float[Tensor, "b h l k"]]:
        """Return the output of each branch; keys and values of all branches are in slots."""
        causal, rate = self.traits.causal, self.dropout if self.training else 0.0
        choice = Choice(table, causal, *self.numbers, self.compressed_block, self.stride)
        by_block, chosen = compressed_attention(q, *compressed, choice, dropout=rate)
        near = neighbours(table, self.window, causal=causal)
        near = near.expand(len(q), self.groups, -1, -1)
        given = [
            (keys[:, here : here + self.groups], values[:, here : here + self.groups])
            for here in (self.groups, 2 * self.groups) if self.branches == 3
        ] or [(keys, values)] * 2  # fmt: skip
        return [
            by_block,
            chosen_attention(q, *given[0], chosen, table, causal=causal, dropout=rate),
            chosen_attention(
                q, *given[1], near, table, causal=causal, reach=self.window, dropout=rate
            ),
        ]

    def merge(
        self, x: Float[Tensor, "b l d"], outputs: list[Float[Tensor, "b h l k"]]
    ) -> Float[Tensor, "b l d"]:
        """Gate the branches by the tokens `x`, add them up, and project the sum."""
        gates = self.gates(x).sigmoid().view(*x.shape[:2], 3, self.heads).permute(2, 0, 3, 1)
        o = sum(gate[..., None] * each for gate, each in zip(gates, outputs, strict=True))
        mixed: Tensor = self.out_proj(cast(Tensor, o).transpose(1, 2).flatten(-2))
        return mixed

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix along the length."""
        x = blanked(x, layout, self.traits)
        q, k, v = self.project(x, layout)
        table = laid_out(layout, x.shape[1], self.block, causal=self.traits.causal, like=x)
        keys, values = table.contents(k), table.contents(v)
        compressed = self.compressed(keys, values, table)
        return self.merge(x, self.outputs(q, keys, values, compressed, table))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory: last blocks, number of tokens, compressed blocks."""
        like, heads = self.q_proj.weight.new_empty(0), self.branches * self.groups
        shape = (batch_size, heads, memory, self.width, self.width)
        count = block_table.blocks_in_memory(memory, self.block) * (self.block // self.stride)
        compressed = like.new_zeros(2, batch_size, self.groups, count, self.width)
        return (block_table.empty_table(shape, self.block, like), *compressed.unbind())

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; with state None, exactly `forward`."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        refuse_in_stream(layout)
        memory, *before = cast(tuple[State, Tensor, Tensor], flow.state)
        q, k, v = self.project(flow.x, layout)
        then = block_table.append_blocks(memory, k, v, self.block)
        each = self.block // self.stride
        # What no new token enters: what is compressed up to the last of the blocks.
        whole = before[0].shape[2] - each - self.compressed_block // self.stride + 1
        whole = max(whole, 0)
        behind = whole * self.stride
        keys, values = then.keys.to(k.dtype), then.values.to(v.dtype)
        fresh = self.compressed(keys[:, :, behind:], values[:, :, behind:], then.table)
        by_key, by_value = (
            torch.cat((old[:, :, :whole].to(new.dtype), new), dim=2)
            for old, new in zip(before, fresh, strict=True)
        )
        y = self.merge(flow.x, self.outputs(q, keys, values, (by_key, by_value), then.table))
        after = (
            then.last(new, each).to(old.dtype)
            for new, old in zip((by_key, by_value), before, strict=True)
        )
        return flow._replace(x=y, state=(then.state, *after))

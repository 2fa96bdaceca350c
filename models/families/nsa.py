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

from lra.models.linear_map import projection
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
from lra.models.multi_head import APPLIED, biases
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
        ValueError: A number is out of range, or `key_value_heads` does not divide heads.
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
        """Check the options; make projections, gates and the compression of blocks."""
        super().__init__()
        size = block if compressed_block is None else compressed_block
        step = size if stride is None else stride
        if not 1 <= size <= block:
            raise ValueError(
                "compressed_block (tokens per compressed key) must be 1 to "
                f"block={block}: got {size}; change one of them, or leave it at null"
            )
        if step < 1 or size % step or block % step:
            raise ValueError(
                "stride (tokens from one compressed key to the next) must divide "
                f"compressed_block={size} and block={block}: got {step}; 1 always works"
            )
        if top < first + local:
            raise ValueError(
                "top (blocks that a query selects) must be at least the sum of the always selected "
                f"first={first} and local={local}: got {top}; use {first + local} or more"
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
        # Whether each branch leaves out tokens or mixes neighbours, so that order matters.
        windowed = window < site.max_length
        selected = top * block < site.max_length
        compressed = size > 1 and (network or step < site.max_length)
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),
            positions=frozenset({Positions.rotary.value}),
            options=APPLIED,
            causal=site.causal,
            operations=Growth(2.0),
            weight_dropout=True,
            summarises=block > 1,
            sees_order=site.causal or self.rotary or windowed or selected or compressed,
        )

    def split(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width of all heads into heads."""
        return x.view(*x.shape[:2], -1, self.width).transpose(1, 2)

    def project(
        self, x: Float[Tensor, "b l d"], layout: Layout
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b g l k"], Float[Tensor, "b g l k"]]:
        """Return queries, keys and values of `x`.

        The heads of keys and values of all branches are concatenated, g in all.
        """
        q, (k, v) = self.split(self.q_proj(x)), self.split(self.key_value_proj(x)).chunk(2, dim=1)
        if self.rotary:
            q, k = rotate(q, layout.start), rotate(k, layout.start)
        return q, k, v

    def compressed(
        self, keys: Float[Tensor, "b g s k"], values: Float[Tensor, "b g s k"], table: BlockTable
    ) -> tuple[Float[Tensor, "b c m k"], Float[Tensor, "b c m k"]]:
        """Return m compressed keys and values, one every `stride` slots, for the first branch."""
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
        """Return the outputs of the branches: compressed blocks, selected blocks, window.

        `keys` and `values` have the heads of all branches in turn, in the slots of `table`.
        """
        causal, rate = self.traits.causal, self.dropout if self.training else 0.0
        choice = Choice(table, causal, *self.numbers, self.compressed_block, self.stride)
        compressed_output, selected = compressed_attention(q, *compressed, choice, dropout=rate)
        near_blocks = neighbours(table, self.window, causal=causal)
        near_blocks = near_blocks.expand(len(q), self.groups, -1, -1)
        # The second and the third branch read the next heads of keys, or the only ones.
        selected_content, window_content = [
            (keys[:, head : head + self.groups], values[:, head : head + self.groups])
            for head in (self.groups, 2 * self.groups) if self.branches == 3
        ] or [(keys, values)] * 2  # fmt: skip
        return [
            compressed_output,
            chosen_attention(q, *selected_content, selected, table, causal=causal, dropout=rate),
            chosen_attention(
                q, *window_content, near_blocks, table,
                causal=causal, reach=self.window, dropout=rate,
            ),
        ]  # fmt: skip

    def merge(
        self, x: Float[Tensor, "b l d"], outputs: list[Float[Tensor, "b h l k"]]
    ) -> Float[Tensor, "b l d"]:
        """Gate the branches by the tokens `x`, add them up, and project the sum."""
        gates = self.gates(x).sigmoid().view(*x.shape[:2], 3, self.heads).permute(2, 0, 3, 1)
        o = sum(gate[..., None] * output for gate, output in zip(gates, outputs, strict=True))
        mixed: Tensor = self.out_proj(cast(Tensor, o).transpose(1, 2).flatten(-2))
        return mixed

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Attend by all three branches, and return their gated, projected sum."""
        x = blanked(x, layout, self.traits)
        q, k, v = self.project(x, layout)
        table = laid_out(layout, x.shape[1], self.block, causal=self.traits.causal, like=x)
        keys, values = table.contents(k), table.contents(v)
        compressed = self.compressed(keys, values, table)
        return self.merge(x, self.outputs(q, keys, values, compressed, table))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory: the last blocks, and their compressed keys and values."""
        like, heads = self.q_proj.weight.new_empty(0), self.branches * self.groups
        shape = (batch_size, heads, memory, self.width, self.width)
        count = block_table.blocks_in_memory(memory, self.block) * (self.block // self.stride)
        compressed = like.new_zeros(2, batch_size, self.groups, count, self.width)
        return (block_table.empty_table(shape, self.block, like), *compressed.unbind())

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; if it is None, call `forward`."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        refuse_in_stream(layout)
        memory, *before = cast(tuple[State, Tensor, Tensor], flow.state)
        q, k, v = self.project(flow.x, layout)
        blocks = block_table.append_blocks(memory, k, v, self.block)
        per_block = self.block // self.stride
        # The first compressed keys contain no new token, so they are reused: all but those that
        # begin in the last block, which may be incomplete, or reach into it.
        old_keys, _ = before
        reused = old_keys.shape[2] - per_block - self.compressed_block // self.stride + 1
        reused = max(reused, 0)
        first_slot = reused * self.stride
        keys, values = blocks.keys.to(k.dtype), blocks.values.to(v.dtype)
        fresh = self.compressed(keys[:, :, first_slot:], values[:, :, first_slot:], blocks.table)
        compressed_keys, compressed_values = (
            torch.cat((old[:, :, :reused].to(new.dtype), new), dim=2)
            for old, new in zip(before, fresh, strict=True)
        )
        compressed = compressed_keys, compressed_values
        y = self.merge(flow.x, self.outputs(q, keys, values, compressed, blocks.table))
        after = (
            blocks.last(new, per_block).to(old.dtype)
            for new, old in zip(compressed, before, strict=True)
        )
        return flow._replace(x=y, state=(blocks.state, *after))

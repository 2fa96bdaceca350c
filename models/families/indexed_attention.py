"""Indexed attention: a small index scores tokens or blocks, and a query attends to the best ones.

    I_ts = sum_h w_th relu(q_th . k_s) / sqrt(c),    o_t = softmax attention to the best s

dsa    s are tokens; keys have LayerNorm, weights (w_t / sqrt(heads)) are computed from the token
qsa    s are blocks: the mean key, then RMSNorm, then rotated by the block's first position; w = 1
kpool  s are blocks: the mean key with learned weights in each channel, else dsa without positions
msa    s are blocks: the best token's product; each head of keys has an index head, without ReLU

qsa and kpool choose among the blocks that a query has passed, and it also attends to the tokens of
its unfinished block. msa always chooses the query's block. A choice has no gradient, so the index
learns by `penalty` times KL(attention, summed over heads || softmax of scores) over the chosen,
which changes nothing else. In a stage `{steps: N, only: index}` of `runner.stages`, attention and
this loss are over all tokens, and all other weights are fixed.

Cost       4 k (budget + C) operations per token and head, for blocks of C tokens, and for each head
           of the index 2 c n (dsa, msa) or 2 c n / C per token. A state has keys, values and keys
           of the index (kpool: and gates).
Source     dsa: DeepSeek-V3.2, arXiv:2512.02556, section 2.1. msa: MiniMax-M3, arXiv:2606.13392.
           qsa, kpool: Qwen4-Exp and GLM-5-next in the code of transformers.
Notation   the paper's k, H^I and d^I are `budget`, `index_heads` and `index_width` (c).
Published  budget=2048; dsa: index_heads=64 index_width=128; kpool: index_heads=32 index_width=128;
           msa: block=128 key_value_heads=4 index_width=128. dsa and kpool are parts of latent
           attention, and their queries are computed from its compressed ones.
Differs    Of equal scores, the nearer token or block is chosen. Blocks skip padding, and each
           document starts a new block. Only dsa published its loss, a sum over queries; here it is
           a mean, and attention to a block is that to its tokens. The gate of kpool starts at 0;
           transformers resets it to 1. The bidirectional form, in which all blocks have scores, is
           an addition of this project.
"""

from dataclasses import replace
from typing import cast

from jaxtyping import Float
from torch import Tensor

from lra.models.mixer import (
    Count,
    Flow,
    Growth,
    Layout,
    Need,
    NonNegative,
    Positions,
    Site,
    State,
    Unsupported,
)
from lra.models.multi_head import Core, HeadCounts, MultiHead
from lra.models.ops.exact import ExactCore, refuse_in_stream
from lra.models.ops.grouped_heads import grouped_sdpa
from lra.models.ops.sparse import block_table
from lra.models.ops.sparse.block_table import BlockTable
from lra.models.ops.sparse.chosen_blocks import chosen_attention
from lra.models.ops.sparse.chosen_tokens import chosen_tokens
from lra.models.ops.sparse.index_loss import index_loss
from lra.models.ops.sparse.index_recall import Recall, recall_of_choice
from lra.models.ops.sparse.index_scorer import BLOCKS, IndexForm, IndexScorer, block_starts
from lra.models.ops.sparse.index_scores import BlockRule, chosen_by_index
from lra.models.positions import position_ids

UNTRAINED = "penalty=0: no loss trains the index, so these scores measure a random selector"


class IndexedAttention(MultiHead):
    """Multi-head attention to the tokens or blocks that an index chooses.

    Args:
        scores: What the index scores, and how.
        budget: Number of tokens that a query attends to; a multiple of `block`.
        block: Number of tokens of a block, C.
        index_heads: Number of heads of the index.
        index_width: Number of channels of these heads, c; None: those of a head of attention.
        index_rotary: Number of these channels that rotary positions rotate; None: all, or the first
            half under scores=dsa.
        key_value_heads: Number of heads of keys and values; None: as many as of queries.
        penalty: Weight of the index's loss; with 0, nothing trains the index.

    Raises:
        ValueError: Numbers do not divide each other, or an odd number of channels is rotated.
    """

    infusible = False
    weighs_padding = False
    needs = (
        Need("block", scores=BLOCKS),
        Need("index_heads", scores=(IndexForm.dsa, IndexForm.qsa, IndexForm.kpool)),
        Need("index_rotary", scores=(IndexForm.dsa, IndexForm.qsa, IndexForm.msa)),
        Need(
            "index_rotary",
            words="rotary positions (model.backbone.positions=rotary)",
            holds=lambda site, _: site.positions == Positions.rotary,
        ),
    )

    def __init__(
        self,
        site: Site,
        *,
        scores: IndexForm = IndexForm.qsa,
        budget: Count = 256,
        block: Count = 16,
        index_heads: Count = 4,
        index_width: Count | None = None,
        index_rotary: int | None = None,
        key_value_heads: Count | None = None,
        penalty: NonNegative = 1.0,
        bias: bool = False,
        output_gate: bool = False,
        qk_norm: bool = False,
    ) -> None:
        """Make the projections of attention and of the index."""
        groups, size = key_value_heads or site.heads, block if scores in BLOCKS else 1
        if site.heads % groups:
            raise ValueError(
                "key_value_heads must divide the number of query heads: got "
                f"key_value_heads={groups}, heads={site.heads}; 1 always works"
            )
        if budget % size:
            raise ValueError(
                f"budget (tokens) must be a multiple of block={block}: got {budget}; set "
                f"{budget - budget % size + size}, or another block"
            )
        core = ExactCore(site, grouped_sdpa, memory=Growth(1.0))
        core.traits = replace(
            core.traits,
            supports=frozenset({"keep", "start", "document"}),
            positions=frozenset(),
            cross=False,
            reversible=False,
            summarises=size > 1,
            remark="" if penalty or budget >= site.max_length else UNTRAINED,
            sees_order=site.causal or budget < site.max_length,
        )
        heads = HeadCounts(site.heads, groups, groups, site.heads)
        super().__init__(
            site,
            core,
            bias=bias,
            bias_default=False,
            heads=heads,
            output_gate=output_gate,
            qk_norm=qk_norm,
        )
        self.index = IndexScorer(
            site.width,
            form=scores,
            heads=groups if scores == IndexForm.msa else index_heads,
            index_width=index_width or site.head_width,
            block=size,
            rotary=index_rotary if site.positions == Positions.rotary else 0,
        )
        self.budget, self.block, self.penalty, self.alone = budget, size, penalty, ""
        self.whole, self.local = (False, 1) if scores == IndexForm.msa else (True, 0)

    def attention_core(self) -> Core:
        """Raise `Unsupported`: choices depend on the tokens."""
        raise Unsupported(
            "indexed chooses keys by the tokens, so its attention is no function of queries, keys "
            "and values: choose moba or softmax"
        )

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Attend to chosen tokens; the loss of the index is lost."""
        return self.extend(Flow(x), layout).x

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`, and add the loss of the index in training."""
        x, causal = layout.blanked(flow.x), self.traits.causal
        length = x.shape[1]
        q, k, v = self.project(x, layout)
        learns, alone = self.training and self.penalty > 0, self.training and self.alone == "index"
        exact = flow.state is None and (alone or self.budget >= length)
        if exact and not learns:
            return flow.with_x(self.merge(self.gated(self.core(q, k, v, layout), x, layout)))
        ids = position_ids(length, layout.start, x)
        reading = self.index.read(x.detach(), ids)
        state: State = None
        if flow.state is None:
            table = self.table(x, layout)
            keys, values, tokens = (table.contents(y) for y in (k, v, reading.tokens))
        else:
            refuse_in_stream(layout)
            old_keys, old_values, seen, old = cast(tuple[Tensor, ...], flow.state)
            blocks = block_table.append_blocks((old_keys, old_values, seen), k, v, self.block)
            new = block_table.append_blocks(
                (old, old[..., :0], seen), reading.tokens, reading.tokens[..., :0], self.block
            )
            table, state = (
                blocks.table,
                (*cast(tuple[Tensor, ...], blocks.state), new.last(new.keys, self.block)),
            )
            keys, values = blocks.keys.to(q.dtype), blocks.values.to(v.dtype)
            tokens = new.keys.to(reading.tokens.dtype)
        starts = block_starts(table, ids, continued=flow.state is not None)
        index = self.index.index(reading, tokens, table, starts)
        rule = self.rule(table, all_blocks=alone)
        chosen: Tensor | None = None
        masses: Tensor | None = None
        rate = cast(ExactCore, self.core).rate()
        if exact:
            o = self.core(q, k, v, layout)
        elif self.block == 1 and not index.by_head:
            chosen = chosen_by_index(index, rule.choose)
            o, masses = chosen_tokens(q, keys, values, chosen, dropout=rate)
        else:
            chosen = chosen_by_index(index, rule.choose).expand(-1, k.shape[1], -1, -1)
            o = chosen_attention(q, keys, values, chosen, table, causal=causal, dropout=rate)
        flow = flow._replace(x=self.merge(self.gated(o, x, layout)), state=state)
        if learns:
            loss = index_loss(
                index, rule, q.detach(), keys.detach(),
                chosen=chosen, keep=layout.keep, masses=masses,
            )  # fmt: skip
            flow = flow.add_penalty("index", self.penalty * loss)
        return flow

    def table(self, x: Float[Tensor, "b l d"], layout: Layout) -> BlockTable:
        """Return the blocks of the tokens `x`."""
        causal = self.traits.causal
        return block_table.laid_out(layout, x.shape[1], self.block, causal=causal, like=x)

    def rule(self, table: BlockTable, *, all_blocks: bool = False) -> BlockRule:
        """Return how queries choose blocks of `table`."""
        top = table.block_count if all_blocks else self.budget // self.block
        return BlockRule(table, top, self.traits.causal, self.whole, self.local)

    def recall(self, x: Float[Tensor, "b l d"], layout: Layout) -> Recall:
        """Return how much attention the chosen tokens get."""
        q, k, _ = self.project(layout.blanked(x), layout)
        ids, table = position_ids(x.shape[1], layout.start, x), self.table(x, layout)
        reading = self.index.read(layout.blanked(x), ids)
        slots, starts = table.contents(reading.tokens), block_starts(table, ids, continued=False)
        index = self.index.index(reading, slots, table, starts)
        return recall_of_choice(index, self.rule(table), q, table.contents(k))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory: keys, values, number of tokens, and keys of the index."""
        like, width = self.q_proj.weight.new_empty(0), self.head_width
        shape = (batch_size, self.head_counts.keys, memory, width, width)
        empty = block_table.empty_table(shape, self.block, like)
        keys, values, seen = cast(tuple[Tensor, ...], empty)
        return (
            keys,
            values,
            seen,
            like.new_zeros(batch_size, 1, keys.shape[2], self.index.stored_channels),
        )

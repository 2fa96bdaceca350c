"""Compressed attention of DeepSeek-V4: recent tokens, and earlier ones as one vector a block.

    c_t = R_t norm(W_K x_t),   q_ti = R_t norm1(Q_i norm(W_Q x_t)),   y_t = W_O [G_1 o_1 ; G_2 ...]
    o_ti = R_t' sum_j p_ij c_j,   p_i = softmax over a window, the entries, and a sink z_i

for head i; c is key and value of all heads. R_t rotates the last channels by the position t; norm1
has no weights. G_n maps the heads of group n to fewer channels. Each complete block of tokens gives
an entry, which is rotated as its first token (`ops.sparse.block_pooling`).

heavy   HCA, heavily compressed attention: a query attends to all entries.
sparse  CSA, compressed sparse attention: entries also depend on the block before, and a query
        attends to the `top` entries with the highest scores of an index with smaller entries,

            I_tn = sum_h w_th relu(q_th . e_n) / sqrt(c h_I),   q_th = R_t Q_h norm(W_Q x_t)

        A choice has no gradient, so the index learns by `penalty` times KL(attention to the chosen
        entries, summed over heads || softmax of I), which changes nothing else. In a stage that
        trains the index alone, attention and loss are over all entries.

Cost       Attention takes 4 h k (w + n / 2 m) operations a token, and the projections 2 d (r + 3 k)
           + 2 h k (r + o) + 2 g o d. State: w - 1 vectors of k, the entries, an unfinished block.
Source     DeepSeek-AI 2026, DeepSeek-V4, section 2.3, and `deepseek_v4` in transformers 5.23.
Notation   the paper's m' is `block`, n_win `window`, d_c `query_width`, g `output_groups` and d_g
           `output_rank`; k is the head width, r the query width, n the number of tokens.
Published  DeepSeek-V4-Flash has d = 4096, 64 heads of 512, `query_width` 1024, 8 groups of rank
           1024, `rotary_width` 64, and layers heavy, heavy, then sparse and heavy in turns.
Differs    R is the identity unless `model.backbone.positions=rotary`. Its channels are paired (i, i
           + r / 2), but (2 i, 2 i + 1) in the released code; only the order of the channels
           differs. YaRN is unsupported. Blocks begin at the first real token of each document.
"""

from enum import StrEnum, auto
from typing import TypeAlias, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    NonNegative,
    Positions,
    Positive,
    Site,
    State,
    Traits,
    blanked,
    options,
)
from lra.models.multi_head import projection
from lra.models.ops.exact import refuse_in_stream
from lra.models.ops.sparse.block_pooling import NORM_EPSILON, BlockPooling, Blocks, norm_channels
from lra.models.ops.sparse.block_table import BlockTable, blocks_in_memory, laid_out
from lra.models.ops.sparse.entry_attention import (
    EntryChoice,
    entry_attention,
    shares,
    sight_in_stream,
    sight_of_rows,
)
from lra.models.ops.sparse.index_scores import Index
from lra.models.positions import Rotation, rotate, rotation

Parts: TypeAlias = tuple[Tensor, ...]


class EntryForm(StrEnum):
    """Which entries a query attends to, and how they are made."""

    heavy = auto()
    """HCA: all entries, made of one block each."""
    sparse = auto()
    """CSA: entries that an index chooses, made of two blocks each."""


class EntryIndex(nn.Module):
    """The maps of the index: to entries, to queries, and to the weights of heads.

    Args:
        site: Where it is built.
        query_width: Channels of the compressed queries that it reads.
        heads: Number of heads.
        width: Channels of a head.
        block: Tokens of a block.
    """

    def __init__(self, site: Site, *, query_width: int, heads: int, width: int, block: int) -> None:
        super().__init__()
        self.pooling = BlockPooling(site.width, width, block, overlap=True)
        self.q_up = projection(query_width, heads * width, bias=False)
        self.weights = projection(site.width, heads, bias=False)


@options
class Compressed(Family):
    """Attention to a window and to compressed blocks, with one vector as key and value."""

    form: EntryForm = EntryForm.heavy
    """Which entries a query attends to, and how they are made."""
    block: Count | None = None
    """Number of tokens of a block, m; null: as published, 128 for heavy and 4 for sparse."""
    window: Count = 128
    """Number of tokens of the window, w, including the query's."""
    top: Count = 512
    """Number of entries that a query chooses."""
    index_heads: Count | None = None
    """Number of heads of the index, h_I; null: as many as of attention."""
    index_width: Count | None = None
    """Number of channels of these heads, c; null: a quarter of a head, at least the rotated."""
    penalty: NonNegative = 1.0
    """Weight of the loss of the index; with 0, nothing trains the index."""
    query_width: Count | None = None
    """Width to which queries are compressed, r; null: a quarter of the model's width."""
    output_groups: Count | None = None
    """Number of groups of heads, g; null: as many as give 8 heads a group, if they divide heads."""
    output_rank: Count | None = None
    """Channels to which a group is mapped, o; null: 2 d / g."""
    rotary_width: Count | None = None
    """Number of rotated channels of a head; null: an eighth, made even."""
    rotary_base: Positive = 160_000.0
    """The slowest rotation takes about 2 pi times this number of tokens for a turn."""

    no_matrices = ("sink",)
    needs = (
        Need("top", "index_heads", "index_width", "penalty", form=EntryForm.sparse),
        Need(
            "rotary_width",
            "rotary_base",
            words="rotary positions (model.backbone.positions=rotary)",
            holds=lambda site, _: site.positions == Positions.rotary,
        ),
    )

    def build(self, site: Site) -> None:
        """Check the options, and make projections, pooling and sinks."""
        width, heads, head = site.width, site.heads, site.head_width
        groups = self.output_groups or (heads // 8 if heads % 8 == 0 else 1)
        if heads % groups:
            raise ValueError(
                f"output_groups must divide the number of heads={heads}: got {groups}; use 1 or "
                f"{heads}"
            )
        rotary = 2 * max(1, head // 16) if self.rotary_width is None else self.rotary_width
        self.turned_width = rotary if site.positions == Positions.rotary else 0
        if self.turned_width and head < 2:
            raise ValueError(
                f"rotary positions need heads of 2 channels or more: got {head}; change heads, "
                "head_width, or positions"
            )
        if self.turned_width and (rotary % 2 or not 2 <= rotary <= head):
            raise ValueError(
                f"rotary_width must be even and 2 to the head width {head}: got {rotary}; use 2"
            )
        index_width = self.index_width or max(head // 4, self.turned_width, 1)
        if index_width < self.turned_width:
            raise ValueError(
                f"index_width must be at least rotary_width={rotary}, which its queries rotate: "
                f"got {index_width}; use {rotary} or more"
            )
        self.heads, self.dropout = heads, site.attention_dropout
        compressed, rank = (
            self.query_width or -(-width // 4),
            self.output_rank or 2 * width // groups,
        )
        self.q_proj = projection(width, compressed, bias=False)
        self.q_norm = nn.RMSNorm(compressed, NORM_EPSILON)
        self.q_up = projection(compressed, heads * head, bias=False)
        self.kv_proj = projection(width, head, bias=False)
        self.kv_norm = nn.RMSNorm(head, NORM_EPSILON)
        self.group_maps = nn.Parameter(torch.empty(groups, rank, heads // groups * head))
        for group in self.group_maps:
            nn.init.xavier_uniform_(group)
        self.out_proj = projection(groups * rank, width, bias=False)
        self.sink = nn.Parameter(torch.zeros(heads))
        sparse = self.form == EntryForm.sparse
        self.size = self.block or (4 if sparse else 128)
        self.pooling = BlockPooling(width, head, self.size, overlap=sparse)
        self.index: EntryIndex | None = None
        if sparse:
            self.index = EntryIndex(
                site,
                query_width=compressed,
                heads=self.index_heads or heads,
                width=index_width,
                block=self.size,
            )
        self.alone = ""
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),
            positions=frozenset({Positions.rotary.value}),
            options=frozenset({"head_width"}),
            causal=True,
            operations=Growth(2.0),
            weight_dropout=True,
            summarises=True,
            reversible=not sparse,
        )

    def turned(
        self,
        x: Float[Tensor, "b l h k"],
        place: Int[Tensor, "#b l"],
        *,
        back: bool = False,
    ) -> Float[Tensor, "b l h k"]:
        """Rotate the last channels of `x` by `place`, or `back`."""
        if not self.turned_width:
            return x
        turn = rotation(x.transpose(1, 2), self.turned_width, place, self.rotary_base)
        if back:
            turn = Rotation(turn.cos, -turn.sin)
        still, last = torch.split(x, [x.shape[-1] - self.turned_width, self.turned_width], -1)
        return torch.cat((still, rotate(last.transpose(1, 2), turn).transpose(1, 2)), -1)

    def merge(self, o: Float[Tensor, "b l h k"]) -> Float[Tensor, "b l d"]:
        """Map each group of heads to fewer channels, and all of them back to the tokens."""
        grouped = o.reshape(*o.shape[:2], len(self.group_maps), -1)
        reduced = torch.einsum("blgi,goi->blgo", grouped, self.group_maps)
        return cast(Tensor, self.out_proj(reduced.flatten(2)))

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Read tokens after `flow.state`; if it is None, read whole rows."""
        x, state, table = blanked(flow.x, layout, self.traits), flow.state, None
        if state is None and (layout.keep is not None or layout.document is not None):
            table = laid_out(layout, x.shape[1], self.size, causal=True, like=x)
            x = table.contents(x[:, None])[:, 0]
        if state is not None:
            refuse_in_stream(layout)
        y, after, loss = self.read(x, cast(Parts | None, state), table)
        if table is not None:
            y = y.gather(1, table.place[..., None].expand(-1, -1, y.shape[2]))
        flow = flow._replace(x=y, state=after)
        return flow if loss is None else flow.add_penalty("index", self.penalty * loss)

    def read(
        self, x: Float[Tensor, "b l d"], state: Parts | None, table: BlockTable | None
    ) -> tuple[Float[Tensor, "b l d"], Parts | None, Tensor | None]:
        """Return the outputs of `x`, in the slots of `table`, the state, and the index's loss.

        A `table` of None means one document. Without a state, there is none afterwards.
        """
        seen = torch.zeros(1, dtype=torch.int64, device=x.device) if state is None else state[1]
        blocks = Blocks(self.size, self.pooling.series, x.shape[1], seen)
        place, learns = blocks.positions(), self.training and self.penalty > 0
        latent = norm_channels(self.q_proj(x), self.q_norm)
        q = torch.unflatten(self.q_up(latent), -1, (self.heads, -1))
        q = self.turned(F.rms_norm(q, q.shape[-1:], eps=NORM_EPSILON), place)
        tokens = norm_channels(self.kv_proj(x), self.kv_norm)
        tokens = self.turned(tokens[:, :, None], place)[:, :, 0]
        entries, *stored = self.entries(self.pooling, x, blocks, table, state and state[2:4])
        choice = None
        if self.index is not None:
            fixed, query = x.detach(), self.index.q_up(latent.detach())
            query = torch.unflatten(query, -1, (-1, self.index.pooling.width))
            keys, *also = self.entries(
                self.index.pooling, fixed, blocks, table, state and state[4:]
            )
            weights = self.index.weights(fixed).mT * query.shape[2] ** -0.5
            index = Index(self.turned(query, place).transpose(1, 2), keys, weights)
            top = entries.shape[1] if self.training and self.alone == "index" else self.top
            choice = EntryChoice(index, top, shares(x, table) if learns else None)
            stored += also
        if state is None:
            sight, after = sight_of_rows(blocks, self.window, table), None
        else:
            sight = sight_in_stream(blocks, self.window, state[3].shape[1])
            tokens = torch.cat((state[0].to(tokens.dtype), tokens), 1)
            last = tokens[:, x.shape[1] :].to(state[0].dtype).clone()
            after = (last, seen + x.shape[1], *stored)
        rate = self.dropout if self.training else 0.0
        o, loss = entry_attention(q, tokens, entries, self.sink, sight, choice=choice, dropout=rate)
        y = self.merge(self.turned(o, place, back=True))
        return y, after, loss if choice is not None and learns else None

    def entries(
        self,
        pooling: BlockPooling,
        x: Float[Tensor, "b l d"],
        blocks: Blocks,
        table: BlockTable | None,
        state: Parts | None,
    ) -> Parts:
        """Return the rotated entries, after those of the state, and both parts of the new state.

        The parts are what `pooling` reads from the tokens of unfinished blocks, and its entries.
        """
        old = None if state is None else state[0]
        slots = blocks.filled(old, pooling.read(x))
        entries = pooling(blocks.pooled(slots), blocks.first(table))
        entries = self.turned(entries[:, :, None], blocks.numbers * blocks.size)[:, :, 0]
        if state is None:
            return (entries,)
        raw, stored = state
        entries = torch.cat((stored.to(entries.dtype), entries), 1)
        return (
            entries,
            blocks.last(slots, blocks.series, blocks.size).to(raw.dtype),
            blocks.last(entries, stored.shape[1]).to(stored.dtype),
        )

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory: the window, unfinished blocks, and the last entries."""
        like, count = self.kv_proj.weight, blocks_in_memory(memory, self.size)
        parts = [like.new_zeros(batch_size, self.window - 1, self.pooling.width)]
        parts += [torch.zeros(batch_size, dtype=torch.int64, device=like.device)]
        for pooling in [self.pooling, *([] if self.index is None else [self.index.pooling])]:
            raw = 2 * pooling.series * pooling.width
            parts += [like.new_zeros(batch_size, pooling.series * self.size, raw)]
            parts += [like.new_zeros(batch_size, count, pooling.width)]
        return tuple(parts)

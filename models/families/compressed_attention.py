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

Cost       Attention takes 4 h k (w + 64 + n / 2 m) operations a token (sparse: `top` in place of n
           / 2 m, and h_I c n / m for the index), and the projections 2 d (r + 3 k) + 2 h k (r + o)
           + 2 g o d. State: w - 1 vectors of k, an entry for every m tokens, an unfinished block.
Source     DeepSeek-AI 2026, DeepSeek-V4, section 2.3, and `deepseek_v4` in transformers 5.23. The
           loss is that of DeepSeek-V3.2, arXiv:2512.02556.
Notation   the paper's m and m' are `block`, n_win is `window`, k `top`, n_h^I and c^I `index_heads`
           and `index_width`, d_c `query_width` (r), g `output_groups`, d_g `output_rank` (o); here
           k is the head width and n the number of tokens.
Published  DeepSeek-V4-Flash has d = 4096, 64 heads of 512, `query_width` 1024, 8 groups of rank
           1024, `rotary_width` 64, an index of 64 heads of 128, and layers heavy, heavy, then
           sparse and heavy in turns.
Differs    R is the identity unless `model.backbone.positions=rotary`. Its channels are paired (i, i
           + r / 2), but (2 i, 2 i + 1) in the released code; only the order of the channels
           differs. YaRN is unsupported. Blocks begin at the first real token of each document, but
           at padding in the released code. Of equal scores, the later entry is chosen. Tokens look
           back in classifiers, too.
"""

from enum import StrEnum, auto
from functools import partial
from typing import TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    NonNegative,
    Positions,
    Site,
    State,
    Traits,
    blanked,
    options,
)
from lra.models.ops.exact import refuse_in_stream
from lra.models.ops.numerics import norm_channels
from lra.models.ops.sparse.block_pooling import (
    NORM_EPSILON,
    BlockPlaces,
    BlockPooling,
)
from lra.models.ops.sparse.block_table import BlockTable, blocks_in_memory, laid_out
from lra.models.ops.sparse.entry_attention import (
    entry_attention,
    sight_in_stream,
    sight_of_rows,
)
from lra.models.ops.sparse.entry_index import EntryChoice, EntryIndex, shares
from lra.models.positions import rotate_last

UNTRAINED = "penalty=0: no loss trains the index, so these scores measure a random selector"
ROTARY_BASE = 160_000.0
"""The base of the angles of rotary positions, unless the backbone sets another."""
Parts: TypeAlias = tuple[Tensor, ...]


class EntryForm(StrEnum):
    """Which entries a query attends to, and how they are made."""

    heavy = auto()
    """HCA: all entries, made of one block each."""
    sparse = auto()
    """CSA: entries that an index chooses, made of two blocks each."""


@options
class CompressedMultiQuery(Family):
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

    undecayed = ("sink",)
    needs = (
        Need("top", "index_heads", "index_width", "penalty", form=EntryForm.sparse),
        Need(
            "rotary_width",
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
        self.rotary_base = ROTARY_BASE if site.rotary_base is None else site.rotary_base
        self.turn = partial(rotate_last, width=self.turned_width, base=self.rotary_base)
        index_width = self.index_width or max(head // 4, self.turned_width, 1)
        if index_width < self.turned_width:
            raise ValueError(
                f"index_width must be at least rotary_width={rotary}, which its queries rotate: "
                f"got {index_width}; use {rotary} or more"
            )
        self.heads, self.dropout = heads, site.attention_dropout
        compressed = self.query_width or -(-width // 4)
        rank = self.output_rank or 2 * width // groups
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
                width,
                query_width=compressed,
                heads=self.index_heads or heads,
                width=index_width,
                block=self.size,
            )
        self.alone = ""
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),
            positions=frozenset({Positions.rotary.value}),
            options=frozenset({"head_width", "rotary_base"}),
            causal=True,
            operations=Growth(2.0),
            weight_dropout=True,
            summarises=True,
            reversible=not sparse,
            remark=UNTRAINED if sparse and not self.penalty else "",
        )

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
        blocks = BlockPlaces(self.size, self.pooling.series, x.shape[1], seen)
        place, learns = blocks.positions(), self.training and self.penalty > 0
        latent = norm_channels(self.q_proj(x), self.q_norm)
        q = torch.unflatten(self.q_up(latent), -1, (self.heads, -1))
        q = self.turn(F.rms_norm(q, q.shape[-1:], eps=NORM_EPSILON), place)
        tokens = norm_channels(self.kv_proj(x), self.kv_norm)
        tokens = self.turn(tokens[:, :, None], place)[:, :, 0]
        entries, stored = blocks.pool(self.pooling, x, table, state and state[2:4], self.turn)
        choice = None
        if self.index is not None:
            keys, also = blocks.pool(
                self.index.pooling, x.detach(), table, state and state[4:], self.turn
            )
            index = self.index.scorer(x, self.turn(self.index.queries(latent), place), keys)
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
        y = self.merge(self.turn(o, place, back=True))
        return y, after, loss if choice is not None and learns else None

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

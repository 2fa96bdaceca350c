"""BigBird: block-sparse attention to neighbouring blocks, global blocks and random blocks.

Equation   o_i = sum_j p_ij v_j, p = softmax of q k / sqrt(d), over the keys in the blocks that the
           block of i attends to: itself, the ones before and after it, the first, the last, and r
           random others, each once; the first and the last block attend to everything (internal
           global tokens, ITC)
Plan       uniform    the r blocks are drawn uniformly among those that the row does not already use
           official   as in the published code: among the first 1,024 tokens where the length is
                      1,024, 3,072 or 4,096; else among the first 2r + 4 blocks where there are
                      more than 2r + 5 blocks
           verbatim   official, with two peculiarities of that code. In sequences longer than 2r + 5
                      blocks, rows 1 and 2r + 3 never draw each other. At 1,024 tokens, the two rows
                      before the last may draw a block that they already use, which then counts
                      twice. The longest sequence, of 1,024, 3,072 or 4,096 tokens or longer than
                      2r + 5 blocks, uses the draws of the Skyformer repository's copy of that code
                      with its default seed, 42: the same in all layers.
           Otherwise, random numbers are drawn once for every layer, head and row of the longest
           sequence and saved with the weights. They determine the random blocks for each length,
           and shorter sequences have r random blocks, too.
Exact      If the sequence has fewer than 5 + r blocks, every block attends to all blocks, and the
           layer computes exact attention.
Cost       The forward pass takes 4 n C D (7 + r) operations. It stores q, k, v, the output and one
           number per query for backward, which computes the scores again.
Source     Zaheer et al., "Big Bird: Transformers for Longer Sequences", arXiv:2007.14062, section 2
           and the appendix on its implementation. ETC, whose global tokens stand in front of the
           sequence, is unsupported.
Notation   the paper's b, w, r, g are `block` = C, 3, `random_blocks`, and 2 blocks.
Padding    A padded example gives the same result as the example alone: its last block is the one
           with its last token, and its random blocks are those of its real length. Incomplete
           blocks are filled up and masked. With `padding: original`, as in the published code, the
           padded length determines the last block and the random blocks, and padding is masked in
           them.
Causal     The causal form is an addition of this project, since the paper's sparse form depends on
           later tokens. A query attends to its own block up to itself, to the block before, to the
           first block, and to r random earlier blocks. Every prefix of a sequence uses the same
           random blocks. The state would grow with the length, so decoding step by step is
           unsupported.
Differs    Masks are exact; the authors add -10,000 to masked scores.
Variant    lra is the released Long Range Arena code, for N = the longest sequence, CLS vector
           included. Every sequence is filled up with padding to N, and from there to the next
           multiple of C (by a whole block where C divides N) with keys and values of 0 that are
           attended to, so that the global last block is that of the longest sequence. Random blocks
           are the draws of that code, among the first 1,024 tokens, seeded by the number of the
           layer. A padded query gives 0. Attention dropout is off, and projections have no bias.
           That code raises an error below 8 blocks with r = 3; here a row then uses the candidates
           that exist. Where causal is requested, it is full causal attention.
"""

import logging
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    Count,
    Growth,
    Layout,
    Need,
    PaddingRule,
    Positions,
    Site,
    Traits,
    Unsupported,
    Variant,
    Whole,
)
from lra.models.multi_head import MultiHead
from lra.models.ops.exact import distance_bias, sdpa, visibility
from lra.models.ops.sparse.big_bird_lra import ReleasedPlan, released_blocks
from lra.models.ops.sparse.big_bird_plan import BigBirdPlan, PlanChoice
from lra.models.ops.sparse.block_lists import list_attention
from lra.models.positions import alibi_slopes

logger = logging.getLogger(__name__)


@cache
def _log_exact(length: int, blocks: int, least: int) -> None:
    """Log, once for each length, that BigBird computes exact attention because it is short."""
    message = (
        "at length %d, BigBird has %d blocks; below %d blocks, every block attends to all others, "
        "so it computes exact attention"
    )
    logger.info(message, length, blocks, least)


class BigBirdCore(nn.Module):
    """Attention within the pattern of BigBird, with its random blocks."""

    draws: Int[Tensor, "h m t"]
    slopes: Float[Tensor, " h"] | None

    def __init__(self, site: Site, pattern: BigBirdPlan, padding: PaddingRule) -> None:
        """Draw the random blocks of `pattern` for each head and query block.

        `variant=lra` fills sequences up from `longest` to the next block, and its draws follow from
        the layer's number, so they are not saved. If causal, it is `full` attention.
        """
        super().__init__()
        self.pattern, self.causal, self.padding = pattern, site.causal, padding
        lra = isinstance(pattern, ReleasedPlan)
        self.full = lra and site.causal
        self.longest = site.max_length if lra and not site.causal else None
        self.dropout = 0.0 if lra else site.attention_dropout
        blocks = (
            site.max_length // pattern.block + 1 if lra else -(-site.max_length // pattern.block)
        )
        # Integers, so that casting the model to another precision does not change the blocks.
        if lra:
            draws = released_blocks(
                site.heads, blocks, block=pattern.block, drawn=pattern.drawn, seed=site.layer
            )
        elif pattern.plan == PlanChoice.verbatim:
            draws = pattern.published_draws(site.heads, blocks)
        else:
            draws = torch.randint(
                2**31 - 1, (site.heads, blocks, pattern.drawn),
                generator=site.generator, dtype=torch.int32, device="cpu",
            )  # fmt: skip
        self.register_buffer("draws", draws.to(torch.empty(()).device), persistent=not lra)
        alibi = site.positions == Positions.alibi
        self.register_buffer("slopes", alibi_slopes(site.heads) if alibi else None)
        self.traits = Traits(
            positions=frozenset({Positions.alibi.value}),
            causal=site.causal,
            max_length=self.longest,
            operations=Growth(2.0 if self.full else 1.0),
            row_stochastic=self.longest is None,
            weight_dropout=not lra,
            random_draws=not lra and pattern.random(blocks),
            sees_order=site.causal or blocks >= pattern.least,
            **padding.traits,
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Let each query attend to the keys that the pattern lists for its block.

        The first and the last block attend to all tokens; the blocks between use the lists. The
        last block may differ between rows, because padding is excluded.
        """
        if self.longest is not None:
            return self.filled(q, k, v, layout.keep, self.longest)
        length, pattern, keep = q.shape[2], self.pattern, layout.keep
        same_last_block = keep is None or self.padding == PaddingRule.original
        count = -(-length // pattern.block)
        if self.full or count < pattern.least:
            if not (self.full or torch.compiler.is_compiling()):
                _log_exact(length, count, pattern.least)
            visible = visibility(layout, length, causal=self.causal, device=q.device)
            position = torch.arange(length, device=q.device)[None]
            return self.exact(q, k, v, position, visible, causal=self.causal)
        counts = torch.full((1,), count, device=q.device)
        if keep is not None and not self.causal and not same_last_block:
            # A row ends with the block of its last real token.
            position = torch.arange(1, length + 1, device=q.device)
            counts = -(-(position * keep).amax(1).clamp(min=1) // pattern.block)
        if missing := count * pattern.block - length:
            q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))
            keep = torch.ones_like(q[:1, 0, :length, 0], dtype=torch.bool) if keep is None else keep
            keep = F.pad(keep, (0, missing))
        if self.causal:
            return self.listed(q, k, v, keep, counts, start=0, stop=count)[:, :, :length]
        stop = count - 1 if same_last_block else count
        middle = self.listed(q, k, v, keep, counts, start=1, stop=stop)
        first_block = torch.arange(pattern.block, device=q.device)
        last_block = (counts - 1)[:, None] * pattern.block + first_block
        position = torch.cat((first_block.expand_as(last_block), last_block), dim=1)
        visible = None if keep is None else keep[:, None, None]
        if same_last_block:
            queries = torch.cat((q[:, :, : pattern.block], q[:, :, -pattern.block :]), dim=2)
        else:
            queries = q.gather(2, position[:, None, :, None].expand(*q.shape[:2], -1, q.shape[3]))
        first, final = self.exact(queries, k, v, position, visible, causal=False).chunk(2, dim=2)
        if same_last_block:
            return torch.cat((first, middle, final), dim=2)[:, :, :length]
        # `middle` has all blocks from 1 on; write the outputs of each row's last block over it.
        o = torch.cat((first, middle), dim=2)
        return o.scatter(2, last_block[:, None, :, None].expand_as(final), final)[:, :, :length]

    def filled(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        keep: Bool[Tensor, "b l"] | None,
        longest: int,
    ) -> Float[Tensor, "b h l v"]:
        """Attend as the released code does, on sequences padded to `longest` plus one block."""
        length, block = q.shape[2], self.pattern.block
        if length > longest:
            raise ValueError(
                f"this model (variant=lra) was built for up to {longest} tokens: got {length} "
                "tokens; truncate, or build the model with a larger max_length"
            )
        count = longest // block + 1
        slots = count * block
        real = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool) if keep is None else keep
        # Padding up to `longest` is hidden; the zeros from there to the last slot are attended to.
        visible = F.pad(F.pad(real, (0, longest - length)), (0, slots - longest), value=True)
        q, k, v = (F.pad(x, (0, 0, 0, slots - length)) for x in (q, k, v))
        ends = torch.arange(slots, device=q.device)
        if count >= 5:  # below, the first and last blocks and their neighbours are all blocks
            ends = torch.cat((ends[:block], ends[-block:]))
        o = self.exact(q[:, :, ends], k, v, ends[None], visible[:, None, None], causal=False)
        if count >= 5:
            counts = torch.full((1,), count, device=q.device)
            middle = self.listed(q, k, v, visible, counts, start=1, stop=count - 1)
            o = torch.cat((o[:, :, :block], middle, o[:, :, block:]), dim=2)
        return o[:, :, :length].masked_fill(~real[:, None, :, None], 0.0)

    def exact(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        position: Int[Tensor, "#b l"],
        visible: Bool[Tensor, "#b 1 #l s"] | None,
        *,
        causal: bool,
    ) -> Float[Tensor, "b h l v"]:
        """Let some queries attend to all keys that `visible` and `causal` leave them.

        `position` has the indices of the l tokens with these queries; only the bias of distances
        depends on it. `visible` is None if all s keys are visible. `causal` limits query i, counted
        among the l, to keys 0 to i: it is set only where the queries are all tokens from the first.
        """
        bias = None
        if self.slopes is not None:
            keys = torch.arange(k.shape[2], device=q.device)
            bias = distance_bias(self.slopes, position[:, None, :, None] - keys)
        return sdpa(q, k, v, causal=causal, visible=visible, dropout=self.rate(), bias=bias)

    def listed(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        keep: Bool[Tensor, "#b l"] | None,
        counts: Int[Tensor, " c"],
        *,
        start: int,
        stop: int,
    ) -> Float[Tensor, "b h m v"]:
        """Let queries of blocks `start` to `stop - 1` attend to the blocks that the plan lists.

        `counts` has the number of blocks of each example, or one number for all examples.
        """
        rows, block = torch.arange(start, stop, device=q.device), self.pattern.block
        lists = self.pattern.lists(self.draws, counts, rows)
        q = q[:, :, start * block : stop * block]
        return list_attention(q, k, v, lists, keep=keep, slopes=self.slopes, dropout=self.rate())

    def rate(self) -> float:
        """Return the current dropout probability: 0 in evaluation."""
        return self.dropout if self.training else 0.0


class BigBird(MultiHead):
    """Multi-head attention over neighbouring, outer and random blocks."""

    lra_version = 1
    needs = (
        Need(
            "block", "random_blocks",
            words="variant=faithful, or a bidirectional model",
            holds=lambda site, chosen: not (site.causal and chosen.variant == Variant.lra),
        ),
        Need("padding", variant=Variant.faithful),
        Need("padding", causal=False),
        Need(
            "plan", words="random_blocks=1 or more",
            holds=lambda _, chosen: chosen.random_blocks > 0,
        ),
    )  # fmt: skip

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes."""
        return {"plan": "lra"} if options.variant == Variant.lra else {}

    def __init__(
        self,
        site: Site,
        *,
        block: Count = 64,
        random_blocks: Whole = 3,
        plan: PlanChoice = PlanChoice.uniform,
        padding: PaddingRule = PaddingRule.exact,
        variant: Variant = Variant.faithful,
        bias: bool = True,
    ) -> None:
        """Refuse a plan that a causal model cannot have; make the pattern and the core."""
        if plan != PlanChoice.uniform and site.causal:
            raise Unsupported(
                f"plan={plan} chooses blocks by the length of the whole sequence, but a causal "
                "model must not depend on later tokens: set plan=uniform"
            )
        kind = ReleasedPlan if variant == Variant.lra else BigBirdPlan
        pattern = kind(block=block, drawn=random_blocks, causal=site.causal, plan=plan)
        super().__init__(site, BigBirdCore(site, pattern, padding), bias=bias)

"""Sinkhorn attention: a learned soft permutation sorts blocks of keys, then attention is local.

    o_i = sum_j p_ij v_j over the 2 C keys [k_B ; k~_B] of i's block B, p = softmax of q k / sqrt(d)
    k~ = S k and v~ = S v block by block, each token keeping its position within the block

S is an n/C x n/C matrix per head, a soft permutation: scores R of query block by source block, plus
Gumbel noise in training, over a temperature, normalised as `sort` says:

    sinkhorn  columns and rows alternately, `iterations` times in the logarithm; rows last, so that
              a sorted key is a weighted mean of keys, and columns sum to 1 only in the limit
    softmax   rows alone
    topk      the `top_blocks` most probable blocks, times their probabilities, without a mixture

    sort_net: mlp        R_B = relu(W2 relu(W1 p_B + b1) + b2) from the sum p_B of the block's
                         inputs, one column per block that fits into max_length
    sort_net: attention  inner products of mean queries and mean keys, for any length

Causal: block B chooses among the blocks before it and a learned null block; p_B sums the inputs up
to the first token of B; a column is divided by the sum of the rows so far.

With `sortcut: c` (only in encoders), every query attends to the first c sorted blocks only.
`local_heads` is the number of heads that attend to C neighbours on each side instead. `mixture`
adds exact attention, the paper's hybrid.

Cost: the forward pass takes 8 n C D + 4 n^2 D / C operations. The second term is for sorting, and
is quadratic in n at a fixed C. `block: null` takes C near sqrt(n / 2) for the model's longest
input; the two terms are then equal and grow as n^1.5. SortCut takes 4 n c C D for attention and 4 c
n D for sorting; topk takes no operations for sorting.

Source: Tay et al. 2020, arXiv:2002.11296. Notation: the paper's block length and number of blocks
are `block` = C and n / C; its psi_S(K) is k~, its N_k is `iterations`.

Differences from the paper: p_B is divided by C, which W1 can absorb. In the causal form the paper
divides columns by sums that include later blocks, a leak; here the sums run up to the current
block. If a position is padding in some source blocks, a sorted block has the mean over the other
source blocks there. Noise is added only in training.

variant: lra follows the Long Range Arena code. Tokens n/C apart make a block. Its sum over two
unrelated indices turns the sorted keys into the plain sum over all blocks, for any sort net, so
there is none. The two softmaxes are separate and their outputs are added. Its padding mask lies
over contiguous blocks: token c of strided block B has the bit of position B C + c in the first
softmax, and in the second, tokens c attend to a sum of tokens j where some contiguous block has
both bits. Other tokens than the padded ones are therefore hidden, and padded ones count like any; a
token without any key gives the mean (attention dropout is not applied to it):
model.backbone.padding=passed. That code raises an error where C does not divide the length; here
the last tokens' blocks are shorter, and under a mask filled up with zeros that are hidden. Its
causal form does not run.
"""

import math
from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.mixer import (
    Count,
    Growth,
    Layout,
    Need,
    Positive,
    Site,
    Traits,
    Unsupported,
    Variant,
    blanked,
    options,
)
from lra.models.multi_head import MultiHead
from lra.models.ops import sorting
from lra.models.ops.banded.sliding_window import window_attention
from lra.models.ops.exact import sdpa, visibility
from lra.models.ops.numerics import full_precision, sum_dtype


class SortNet(StrEnum):
    """Network that scores pairs of blocks."""

    mlp = auto()
    attention = auto()


class Sort(StrEnum):
    """How scores become a (soft) permutation of blocks."""

    sinkhorn = auto()
    softmax = auto()
    topk = auto()


SORTING = ("sort_net", "sort", "iterations", "temperature", "gumbel", "top_blocks", "sortcut")
"""Options of the heads that sort blocks."""


class SinkhornOptions(NamedTuple):
    """The options of `Sinkhorn`, which `check` compares with the site."""

    block: int | None
    sort_net: SortNet
    sort: Sort
    iterations: int
    temperature: float
    gumbel: bool
    top_blocks: int
    sortcut: int | None
    local_heads: int
    mixture: bool
    variant: Variant

    def check(self, site: Site) -> None:
        """Raise ValueError for a bad `local_heads`, `Unsupported` if these cannot be causal."""
        if not 0 <= self.local_heads <= site.heads:
            raise ValueError(
                f"local_heads must be 0 to {site.heads} (the number of heads): got "
                f"{self.local_heads}"
            )
        lra = self.variant == Variant.lra
        if site.causal and (self.sortcut or lra):
            raise Unsupported(
                f"{('variant=lra' if lra else 'sortcut')} of Sinkhorn attends to the whole "
                "sequence, but this model must be causal: set sortcut=null and variant=faithful"
            )


def balanced_block(length: int) -> int:
    """Return the block size, a multiple of 16 near sqrt(length / 2).

    With it, sorting takes about as many operations as attention.
    """
    return max(1, round(math.sqrt(length / 2) / 16)) * 16


class SinkhornCore(nn.Module):
    """Sorting of blocks, and attention to them; a sort net may provide the scores."""

    def __init__(self, site: Site, options: SinkhornOptions) -> None:
        """Check the options; make the null block of a causal model, and set traits."""
        super().__init__()
        options.check(site)
        self.options, self.causal, self.dropout = options, site.causal, site.attention_dropout
        self.block = options.block or balanced_block(site.max_length)
        self.lra = options.variant == Variant.lra
        self.sorted_heads = 0 if self.lra else site.heads - options.local_heads
        if site.causal and self.sorted_heads:
            shape = (self.sorted_heads, 1, 1, site.head_width)
            self.null_key = nn.Parameter(torch.empty(shape))
            self.null_value = nn.Parameter(torch.empty(shape))
            for null in (self.null_key, self.null_value):
                nn.init.normal_(null, std=0.02)
        # The mlp has one output for each block of the longest input.
        fixed = self.sorted_heads and options.sort_net == SortNet.mlp
        plain = not (self.lra or options.mixture or options.sort == Sort.topk)
        self.traits = Traits(
            supports=frozenset({"start"} if self.lra else {"keep", "start"}),
            hides_others=self.lra,
            causal=site.causal,
            max_length=site.max_length if fixed else None,
            operations=self.growth(),
            memory=self.memory(),
            row_stochastic=plain and not site.causal,  # the null block has a learned value
            weight_dropout=True,
            training_noise=self.sorted_heads > 0 and options.gumbel,
            sees_order=site.causal or not self.sees_alike(site.max_length),
        )

    def sees_alike(self, length: int) -> bool:
        """Return whether a bidirectional model ignores the order of `length` tokens.

        It does if one block contains all tokens, or if blocks of one token are sorted by content.
        """
        options, block = self.options, self.block
        if self.lra:
            return block == 1 or block >= length
        if not self.sorted_heads:  # windows of `block` tokens to each side
            return block >= length - 1
        by_content = options.sort_net == SortNet.attention and options.sortcut is None
        return block >= length or (block == 1 and by_content and not options.local_heads)

    def growth(self) -> Growth:
        """Return the growth of operations with n: (n / C)^2 for sorting, n C for attention.

        These are n^2 and n with a fixed C, but n and n^1.5 with the default C, which grows as
        n^0.5. The mixture adds exact attention, n^2.
        """
        balanced = self.options.block is None
        if self.options.mixture or (self.sorted_heads and not balanced):
            return Growth(2.0)
        return Growth(1.5 if balanced else 1.0)

    def memory(self) -> Growth:
        """Return the growth of activations with n: (n / C)^2 for sorting, n C for weights.

        Only local heads store weights. For the default C see `growth`.
        """
        if self.options.block is None:
            return Growth(1.5 if self.options.local_heads else 1.0)
        return Growth(2.0 if self.sorted_heads else 1.0)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        scores: Float[Tensor, "b g n j"] | None = None,
    ) -> Float[Tensor, "b h l v"]:
        """Attend by local heads and by heads that sort blocks (g of them).

        `scores` has a score for each of n query blocks and j source blocks; with None, scores are
        products of mean queries and mean keys.
        """
        dropout = self.dropout if self.training else 0.0
        if self.lra:
            return sorting.strided_attention(q, k, v, self.block, keep=layout.keep, dropout=dropout)
        local, keep, causal = self.options.local_heads, layout.keep, self.causal
        parts = []
        if local:
            local_parts = [x[:, :local] for x in (q, k, v)]
            size = self.block
            parts.append(
                window_attention(
                    *local_parts, window=size, block=size, causal=causal, keep=keep, dropout=dropout
                )
            )
        if self.sorted_heads:
            others = [x[:, local:] for x in (q, k, v)]
            parts.append(self.sorted_attention(*others, keep=keep, scores=scores, dropout=dropout))
        o = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
        if self.options.mixture:
            visible = visibility(layout, q.shape[2], causal=causal, device=q.device)
            o = o + sdpa(q, k, v, causal=causal, visible=visible, dropout=dropout)
        return o

    def sorted_attention(
        self,
        q: Float[Tensor, "b g l k"],
        k: Float[Tensor, "b g l k"],
        v: Float[Tensor, "b g l v"],
        *,
        keep: Bool[Tensor, "b l"] | None,
        scores: Float[Tensor, "b g n j"] | None,
        dropout: float,
    ) -> Float[Tensor, "b g l v"]:
        """Let each block attend to itself and to the sorted block (with SortCut, the first ones).

        `keep` is False for padding, and `scores` is as in `forward`.
        """
        length, real = q.shape[2], None
        if keep is not None or not self.causal:  # causal queries never reach the filled-up end
            real = sorting.real_tokens(keep, length, self.block, q.device)
        q, k, v = (sorting.split_blocks(x, self.block) for x in (q, k, v))
        if keep is not None and real is not None:
            k, v = (x.masked_fill(~real[:, None, ..., None], 0.0) for x in (k, v))
        if scores is None:
            scores = sorting.mean_scores(q, k, real, causal=self.causal)
        arranged = self.arrange(k, v, real, scores)
        if self.options.sortcut:
            keys, values, present = arranged
            visible = None if present is None else present.flatten(2, 3)[:, :, None]
            q, keys, values = (x.flatten(2, 3) for x in (q, keys, values))
            o = F.scaled_dot_product_attention(
                q, keys, values, attn_mask=visible, dropout_p=dropout
            )
        else:
            o = sorting.attend_to_both(
                q, k, v, arranged, real=real, causal=self.causal, dropout=dropout
            )
        return o[:, :, :length]

    def arrange(
        self,
        k: Float[Tensor, "b g n c k"],
        v: Float[Tensor, "b g n c v"],
        real: Bool[Tensor, "#b n c"] | None,
        scores: Float[Tensor, "b g n j"],
    ) -> sorting.Sorted:
        """Return sorted keys and values for each block; with SortCut, for the first blocks only.

        `k`, `v` have n blocks of c tokens; `real` is False for padding; `scores` as in `forward`.
        """
        options, causal = self.options, self.causal
        allowed = sorting.choices(real, k.shape[2], causal=causal, device=k.device)
        if self.training and options.gumbel:
            scores = scores + sorting.gumbel_like(scores)
        scores = scores / options.temperature
        if causal:
            nulls = (self.null_key, self.null_value)
            first = (x.to(k.dtype).expand(k.shape[0], -1, -1, self.block, -1) for x in nulls)
            k, v = (torch.cat(pair, 2) for pair in zip(first, (k, v), strict=True))
            real = None if real is None else F.pad(real, (0, 0, 1, 0), value=True)
        places = sorting.first_places(real, options.sortcut)
        if options.sort == Sort.topk:
            scores = sorting.take(scores, places)
            allowed = None if allowed is None else sorting.take(allowed, places)
            return sorting.take_best(
                k, v, real, scores=scores, free=allowed, count=options.top_blocks, causal=causal
            )
        if options.sort == Sort.sinkhorn:
            weights = sorting.sinkhorn(
                scores, allowed, iterations=options.iterations, causal=causal
            )
        else:
            weights = sorting.softmax(scores, allowed)
        return sorting.mix(sorting.take(weights, places), k, v, real)


@options
class Sinkhorn(MultiHead):
    """Sinkhorn attention between the four projections, with a sort net.

    `block` is the number of tokens of a block; null: `balanced_block` of the longest input.
    `gumbel` adds Gumbel noise to scores in training.
    """

    block: Count | None = None
    sort_net: SortNet = SortNet.mlp
    sort: Sort = Sort.sinkhorn
    iterations: Count = 8
    temperature: Positive = 0.75
    gumbel: bool = True
    top_blocks: Count = 1
    sortcut: Count | None = None
    local_heads: int = 0
    mixture: bool = False
    bias: bool = True
    variant: Variant = Variant.faithful
    no_matrices = ("sort_bias", "core.null_key", "core.null_value")
    needs = (
        Need("iterations", sort=Sort.sinkhorn),
        Need("top_blocks", sort=Sort.topk),
        Need(
            *SORTING,
            words="heads that sort blocks (local_heads below model.backbone.heads)",
            holds=lambda site, chosen: chosen.local_heads < site.heads,
        ),
    )

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes; it sorts nothing."""
        if options.variant != Variant.lra:
            return {}
        return {**dict.fromkeys(SORTING), "local_heads": 0, "mixture": False}

    def build(self, site: Site) -> None:
        """Make the core, and the sort net if the options need one."""
        chosen = SinkhornOptions(*(getattr(self, name) for name in SinkhornOptions._fields))
        core = SinkhornCore(site, chosen)
        super().__init__(site, core, bias=self.bias)
        self.cut, self.causal = core.block, site.causal
        self.sorted_heads, self.max_length = core.sorted_heads, core.traits.max_length
        if self.max_length is not None:
            columns = -(-self.max_length // core.block) + site.causal  # and one for the null block
            self.sort_in = nn.Linear(site.width, core.sorted_heads * site.head_width)
            self.sort_out = nn.Parameter(torch.empty(core.sorted_heads, site.head_width, columns))
            self.sort_bias = nn.Parameter(torch.zeros(core.sorted_heads, 1, columns))
            for matrix in (self.sort_in.weight, *self.sort_out):
                nn.init.xavier_uniform_(matrix)
            nn.init.zeros_(self.sort_in.bias)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Project the tokens, score blocks, attend, and project back."""
        x = blanked(x, layout, self.traits)
        q, k, v = self.project(x, layout)
        return self.merge(self.core(q, k, v, layout, self.block_scores(x)))

    def block_scores(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b g n j"] | None:
        """Return the sort net's scores of n query blocks and j source blocks, for g heads.

        Return None if queries and keys give the scores. Padding in `x` must be zeros.

        Raises:
            ValueError: The sequence has more blocks than the sort net has outputs.
        """
        if self.max_length is None:
            return None
        if x.shape[1] > self.max_length:
            raise ValueError(
                f"the sort network of this model accepts at most {self.max_length} tokens: got "
                f"{x.shape[1]} tokens; build the model with a larger max_length, or choose "
                "sort_net=attention"
            )
        with full_precision(x):
            pooled = sorting.pool(sorting.split_blocks(x, self.cut), causal=self.causal) / self.cut
            hidden = self.sort_in(pooled.to(self.sort_in.weight.dtype)).relu()
            hidden = hidden.view(*hidden.shape[:2], self.sorted_heads, -1).transpose(1, 2)
            scores = (hidden @ self.sort_out + self.sort_bias).relu()
        columns = pooled.shape[1] + self.causal  # of this length, and of the null block
        return cast(Tensor, scores)[..., :columns].to(sum_dtype(x))

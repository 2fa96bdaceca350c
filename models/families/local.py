"""Block-local attention: the sequence is cut into blocks, and tokens attend within their block.

    o_i = sum_j p_ij v_j over -look_back <= block(j) - block(i) <= look_forward (causal: and j <= i)

with block(i) = floor(i / C), where p is the softmax of q k / sqrt(d) over these j. With
look_back=0 and look_forward=0, information never crosses the border of a block, at any depth.

Cost: the layer takes 4 n C D (1 + look_back + look_forward) operations. A causal layer continues a
text with the stored keys and values of the last C (1 + look_back) - 1 tokens.

Source: the "local attention" of Tay et al. 2021, arXiv:2011.04006 (Long Range Arena); attention to
earlier blocks is that of Parmar et al. 2018, arXiv:1802.05751. Notation: `block` is C. For a window
that moves with every token, use `sliding_window`.

Differences from the paper: the last block may be shorter.

variant: lra, the code behind its numbers, has no contiguous blocks. For N = the longest sequence,
CLS vector included:

  - Token i is in group i mod G, G = floor(N / C) + 1. A group is therefore a comb of up to C tokens
    at distances of G, not a block. G is one more than N / C even where C divides N.
  - The remaining C G - N slots are keys of 0 with values of 0, and are attended to: each has the
    weight exp(0).
  - Its padding mask lies over contiguous blocks: the token in slot c of group g has the bit of
    position g C + c. Other tokens than the padded ones are therefore hidden, and padded ones count
    like any. A token whose bit is False gives the mean of the C values of its group. So it is here
    under model.backbone.padding=passed; the batch must be padded to N, as there.
  - Its causal form, marked there as untested, raises an error, as do look_back and look_forward.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Layout, Positions, Site, State, Traits, Unsupported, Variant
from lra.models.multi_head import MultiHead
from lra.models.ops import window_cache
from lra.models.ops.exact import sloped_mask
from lra.models.ops.sparse.block_attention import block_attention
from lra.models.ops.sparse.key_sets import Blocks, Rectangles
from lra.models.ops.sparse.union import union_attention
from lra.models.positions import alibi_slopes


def local_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    block: int,
    look_back: int = 0,
    look_forward: int = 0,
    causal: bool = False,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Let each token attend to its block of contiguous tokens, and to neighbouring blocks.

    Blocks have `block` tokens; a token attends to `look_back` blocks before its own, and to
    `look_forward` after it. If `causal`, later tokens are hidden, and so are keys with `keep` False
    (None: none). `slopes` has the decrease of each head's scores per token of distance (ALiBi;
    None: 0), `dropout` the probability that a weight is set to 0; the others are divided by
    1 - dropout. A query without any visible key returns 0.
    """
    length = q.shape[2]
    other_blocks = -(-length // block) - 1
    blocks = Blocks(
        rows=q.shape[0] * q.shape[1],
        length=length,
        block=min(block, length),
        look_back=min(look_back, other_blocks),
        look_forward=min(look_forward, other_blocks),
        causal=causal,
    )
    return block_attention(q, k, v, blocks, keep=keep, slopes=slopes, dropout=dropout)


def comb_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    block: int,
    longest: int,
    keep: Bool[Tensor, "b l"] | None = None,
    slopes: Float[Tensor, " h"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h l v"]:
    """Attend within the groups of the LRA code, for sequences of up to `longest` tokens.

    A group has every G-th token (see the module's docstring). As in that code, `keep` hides other
    tokens than the padded ones. The remaining arguments are those of `local_attention`.
    """
    length = q.shape[2]
    groups = longest // block + 1  # one more than N / C even where C divides N
    slots = groups * block
    if keep is None and length < longest:
        keep = torch.ones(q.shape[0], length, dtype=torch.bool, device=q.device)
    if keep is not None:
        keep = F.pad(F.pad(keep, (0, longest - length)), (0, slots - longest), value=True)
        # The bit of position g C + c is for slot c of group g, which is token c G + g.
        keep = keep.view(-1, groups, block).mT.reshape(-1, slots)
    k, v = (F.pad(x, (0, 0, 0, slots - length)) for x in (k, v))
    rows = q.shape[0] * q.shape[1]
    combs = Rectangles(rows=rows, length=length, keys_length=slots, classes=groups)
    o = union_attention(q, k, v, combs, keep=keep, slopes=slopes, dropout=dropout)
    if keep is None:
        return o
    # The mean of each group's C values, for each of its tokens.
    mean = torch.unflatten(v, 2, (block, groups)).mean(2).repeat(1, 1, block, 1)[:, :, :length]
    return o.where(keep[:, None, :length, None], mean)


class LocalCore(nn.Module):
    """Attention within blocks, with ALiBi and a state along time."""

    slopes: Float[Tensor, " h"] | None

    def __init__(
        self, site: Site, *, block: int, look_back: int, look_forward: int, variant: Variant
    ) -> None:
        """Check the options, and set the traits that follow from them."""
        super().__init__()
        if block < 1:
            raise ValueError(f"block, a number of tokens, must be at least 1: got {block}")
        for name, value in (("look_back", look_back), ("look_forward", look_forward)):
            if value < 0:
                raise ValueError(f"{name}, a number of blocks, must be at least 0: got {value}")
        comb = variant == Variant.lra
        if site.causal and comb:
            raise Unsupported(
                "variant=lra has no causal form, because the causal form of that code was never "
                "tested: choose variant=faithful"
            )
        if site.causal and look_forward:
            raise Unsupported(
                f"a causal model cannot attend to later blocks: got look_forward={look_forward}; "
                "set it to 0"
            )
        self.block, self.look_back, self.look_forward = block, look_back, look_forward
        self.longest = site.max_length if comb else None
        self.dropout = site.attention_dropout
        alibi = site.positions == Positions.alibi
        self.register_buffer(
            "slopes", alibi_slopes(site.heads) if alibi else None, persistent=False
        )
        other_blocks = site.max_length // block if comb else -(-site.max_length // block) - 1
        # Order has no effect if every token attends to all, or to itself alone.
        all_tokens = min(look_back, look_forward) >= other_blocks and not site.causal
        own_token = block == 1 and not (look_back or look_forward)
        self.traits = Traits(
            supports=frozenset({"start"} if comb else {"keep", "start"}),
            hides_others=comb,
            positions=frozenset({Positions.alibi.value}),
            causal=site.causal,
            max_length=self.longest,
            reach=None if comb else (max(look_back, look_forward) + 1) * block - 1,
            row_stochastic=not comb,
            weight_dropout=True,
            sees_order=not (all_tokens or own_token),
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Let each query attend to its block, `look_back` earlier and `look_forward` later ones.

        With `variant=lra`, groups of distant tokens take the place of blocks.
        """
        dropout = self.dropout if self.training else 0.0
        if self.longest is None:
            return local_attention(
                q, k, v, block=self.block, look_back=self.look_back,
                look_forward=self.look_forward, causal=self.traits.causal, keep=layout.keep,
                slopes=self.slopes, dropout=dropout,
            )  # fmt: skip
        if q.shape[2] > self.longest:
            raise ValueError(
                f"this model (variant=lra) was built for up to {self.longest} tokens: got "
                f"{q.shape[2]} tokens; truncate, or build the model with a larger max_length"
            )
        return comb_attention(
            q, k, v, block=self.block, longest=self.longest, dropout=dropout,
            keep=layout.keep, slopes=self.slopes,
        )  # fmt: skip

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return an empty state: keys and values of earlier tokens, and the number of tokens read.

        It stores as many tokens as a later one can attend to, whatever memory `shape` requests.
        """
        return window_cache.empty_window(shape, (1 + self.look_back) * self.block - 1, like)

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Let each new query attend to remembered and new tokens up to itself; update the state.

        Rows may be at different places within their blocks. So the new tokens are processed in
        pieces, each with all keys that some place of a block could attend to, and a mask.
        """
        del layout  # distances and blocks follow from the number of tokens in the state
        keys, values, read_count, after = window_cache.append_window(state, k, v)
        length, past = q.shape[2], after[0].shape[2]
        size = min(length, self.block)
        pieces = -(-length // size)

        def cut(x: Tensor, width: int) -> Tensor:
            """Return windows of `width` keys, one piece after another along the batch."""
            x = F.pad(x, (0, 0, 0, pieces * size - length))
            return x.unfold(2, width, size).permute(0, 2, 1, 4, 3).flatten(0, 1)

        # Positions in the text: of each piece's first query, of its queries, and of its keys.
        begin = read_count[:, None, None] + torch.arange(pieces, device=q.device)[:, None] * size
        query = (begin + torch.arange(size, device=q.device))[..., None]
        key = (begin + torch.arange(-past, size, device=q.device))[..., None, :]
        visible = (key >= 0) & (key <= query)
        visible &= query // self.block - key // self.block <= self.look_back
        distance = (query - key).flatten(0, 1)[:, None]
        mask = sloped_mask(visible.flatten(0, 1)[:, None], distance, self.slopes, q.dtype)
        o = F.scaled_dot_product_attention(
            cut(q, size),
            cut(keys, past + size),
            cut(values, past + size),
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        o = o.view(-1, pieces, *o.shape[1:]).transpose(1, 2).flatten(2, 3)
        return o[:, :, :length], (*after, read_count + length)


class LocalAttention(MultiHead):
    """Multi-head attention within blocks."""

    lra_version = 1

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes, with their values."""
        return {"look_back": 0, "look_forward": 0} if options.variant == Variant.lra else {}

    def __init__(
        self,
        site: Site,
        *,
        block: int = 64,
        look_back: int = 0,
        look_forward: int = 0,
        variant: Variant = Variant.faithful,
        bias: bool = True,
    ) -> None:
        core = LocalCore(
            site, block=block, look_back=look_back, look_forward=look_forward, variant=variant
        )
        super().__init__(site, core, bias=bias)

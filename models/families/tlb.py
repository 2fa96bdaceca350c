"""Temporal Latent Bottleneck: attention within chunks, and a recurrent state between them.

Equation   s_0 = 0; for chunk c = 1 ... n / C:
               s   <- s + PE;  x_c <- x_c + PE               (positions start anew per chunk)
               g times:  r self-attention layers over x_c, then x_c attends to s
               u times:  s attends to x_c
           answer: LN(s_last), S tokens, whose mean the head reads
Cost       The forward pass takes r g (4 n C D + 8 n D^2 + 4 n D F) operations, and those of g + u
           cross-attention layers with n S pairs. Memory grows as n. There are n / C steps one after
           the other. With g = 1 the self-attention layers are independent of the state, and run for
           all chunks at once.
Source     Didolkar et al. 2022, "Temporal Latent Bottleneck", arXiv:2205.14794; the structure is
           that of the code in the official Long Range Arena repository.
Notation   state_tokens S, chunk C, self_layers r, groups g, state_layers u, F the width of the
           feed-forward network.
Limits     The model gives one output per sequence and attends to both directions within a chunk, so
           it cannot be a language model. A length that C does not divide is padded with masked
           tokens; a chunk without a real token leaves the state unchanged. With `padding:
           original`, as in that code, such a chunk still adds PE to the state, so that an output
           depends on the amount of padding.
Differs    Every layer is pre-norm and has the same feed-forward network as all other families here.
           This is a whole stack and not a mixer, so depth and residual options of the backbone do
           not apply.
"""

from collections.abc import Collection
from enum import StrEnum, auto
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.config import BackboneConfig
from lra.models.backbone.heads import WITH_CLS, Pooling
from lra.models.backbone.networks import FeedForward, network_of
from lra.models.backbone.stack import TransformerBlock
from lra.models.mixer import (
    INSIDE,
    ByName,
    Count,
    Flow,
    Growth,
    Idle,
    Layout,
    PaddingRule,
    Positions,
    Site,
    Traits,
    Unsupported,
    Whole,
    blanked,
)
from lra.models.multi_head import APPLIED, MultiHead
from lra.models.ops.exact import ExactCore, sdpa
from lra.models.positions import position_ids, precise, sinusoid


class ChunkPositions(StrEnum):
    """What is added to the tokens of every chunk, unless the whole sequence has positions."""

    sinusoidal = auto()
    learned = auto()


class CrossBlock(nn.Module):
    """`x + attention(LN x, LN source)`, then `x + network(LN x)`."""

    def __init__(self, site: Site, config: BackboneConfig) -> None:
        super().__init__()
        self.norm, self.source_norm = _make_norm(site, config), _make_norm(site, config)
        self.attention = _make_attention(site)
        self.network_norm = _make_norm(site, config)
        self.network = network_of(
            site.width, config.feed_forward_width, config.dropout, kind=config.feed_forward
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Float[Tensor, "b l d"],
        source: Float[Tensor, "b s d"],
        keep: Bool[Tensor, "b s"] | None,
    ) -> Float[Tensor, "b l d"]:
        """Let `x` attend to the real tokens of `source` (`keep`), then apply the network."""
        attended = self.attention.attend(
            self.norm(x), Layout(), self.source_norm(source), Layout(keep=keep)
        )
        x = x + self.dropout(attended)
        output: Tensor = x + self.dropout(self.network(self.network_norm(x)))
        return output


class TemporalLatentBottleneck(ByName, nn.Module):
    """The recurrent stack. Its output is its state, (b, state_tokens, d).

    Args:
        site: Where it is built.
        config: Width, activation and dropout of the networks, epsilon of the norms.
        state_tokens: Number of tokens of the recurrent state, S.
        chunk: Number of tokens of a chunk, C, which are read between two updates of the state.
        self_layers: Number of self-attention layers before each cross-attention to the state, r.
        groups: Number of times that a chunk attends to the state, g.
        state_layers: Number of cross-attention layers that update the state, u.
        detach_every: Number of chunks after which the gradient is cut; 0: never.
        chunk_positions: Position embeddings (PE) of chunks and state.
        padding: What a chunk that holds only padding does to the state.

    Raises:
        Unsupported: The model is causal, its pooling is no mean, its layers have no feed-forward
            network, or mixers apply positions themselves.
    """

    reads: ClassVar[Collection[str]] = ("feed_forward", "norm_epsilon")
    """Options of blocks that also apply to this stack."""
    places: nn.Parameter | None

    def __init__(
        self,
        site: Site,
        config: BackboneConfig,
        *,
        state_tokens: Count = 20,
        chunk: Count = 20,
        self_layers: Count = 2,
        groups: Count = 1,
        state_layers: Count = 1,
        detach_every: Whole = 0,
        chunk_positions: ChunkPositions = ChunkPositions.sinusoidal,
        padding: PaddingRule = PaddingRule.exact,
    ) -> None:
        """Check the options; make the layers of chunks and of the state, and positions."""
        super().__init__()
        _check_options(site, config)
        self.state_tokens, self.chunk, self.detach_every = state_tokens, chunk, detach_every
        self.padding = padding
        self.groups = nn.ModuleList(
            nn.ModuleList(_make_self_block(site, config) for _ in range(self_layers))
            for _ in range(groups)
        )
        self.looks = nn.ModuleList(CrossBlock(site, config) for _ in range(groups))
        self.updates = nn.ModuleList(CrossBlock(site, config) for _ in range(state_layers))
        self.norm = _make_norm(site, config)
        # Chunks get positions of their own unless the model adds some to the whole sequence.
        self.placed = config.positions == Positions.none
        learned = chunk_positions == ChunkPositions.learned
        table = nn.Parameter(0.02 * torch.randn(chunk, site.width)) if learned else None
        self.register_parameter("places", table)
        self.traits = Traits(
            supports=frozenset({"keep"}), reversible=False, weight_dropout=True, keeps_length=False,
            options=APPLIED,
        )  # fmt: skip

    def forward(self, flow: Flow, layout: Layout) -> Flow:
        """Read the sequence chunk by chunk; return the normed state after the last chunk."""
        x, keep = blanked(flow.x, layout, self.traits), layout.keep
        batch, length, width = x.shape
        missing = -length % self.chunk
        if missing:
            x = F.pad(x, (0, 0, 0, missing))
            real = torch.ones_like(x[:, :length, 0], dtype=torch.bool) if keep is None else keep
            keep = F.pad(real, (0, missing))
        chunk_shape = (batch, x.shape[1] // self.chunk, self.chunk)
        chunks = x.view(*chunk_shape, width)
        keep_chunks = None if keep is None else keep.view(chunk_shape)
        if self.placed:
            chunks = chunks + (
                self._make_positions(self.chunk, x) if self.places is None else self.places
            )
        # The first layers do not depend on the state, so they run for all chunks as one batch.
        flat = None if keep_chunks is None else keep_chunks.flatten(0, 1)
        chunks = self._apply_group(0, chunks.flatten(0, 1), flat).view(chunks.shape)
        state = x.new_zeros(batch, self.state_tokens, width)
        for number in range(chunks.shape[1]):
            if self.detach_every and number and number % self.detach_every == 0:
                state = state.detach()
            keep_chunk = None if keep_chunks is None else keep_chunks[:, number]
            state = self._read_chunk(state, chunks[:, number], keep_chunk)
        return flow.with_x(self.norm(state))

    def _read_chunk(
        self, state: Float[Tensor, "b s d"], x: Float[Tensor, "b c d"], keep: Tensor | None
    ) -> Float[Tensor, "b s d"]:
        """Return the state after chunk `x`, to which the first self-attention layers were applied.

        A row whose chunk has no real token keeps its state.
        """
        new = state + self._make_positions(self.state_tokens, state)
        unchanged = new if self.padding == PaddingRule.original else state
        for group, look in enumerate(self.looks):
            if group:
                x = self._apply_group(group, x, keep)
            x = look(x, new, None)
        for update in self.updates:
            new = update(new, x, keep)
        if keep is None:
            return new
        return torch.where(keep.any(1)[:, None, None], new, unchanged)

    def _apply_group(
        self, group: int, x: Float[Tensor, "n c d"], keep: Bool[Tensor, "n c"] | None
    ) -> Float[Tensor, "n c d"]:
        """Apply the self-attention layers of number `group` to n chunks."""
        flow = Flow(x)
        for block in cast(Any, self.groups[group]):
            flow = block(flow, Layout(keep=keep))
        return flow.x

    def _make_positions(self, length: int, like: Tensor) -> Float[Tensor, "1 l d"]:
        """Return sinusoids of positions 0 … length-1, with the width and type of `like`."""
        ids, dtype = position_ids(length, None, like), precise(like.dtype)
        return sinusoid(ids, like.shape[-1], dtype=dtype).to(like.dtype)


def _make_norm(site: Site, config: BackboneConfig) -> nn.LayerNorm:
    """Return a new norm of the model's width."""
    return nn.LayerNorm(site.width, eps=config.norm_epsilon)


def _make_attention(site: Site) -> MultiHead:
    """Return new exact attention, for self-attention and cross attention alike."""
    return MultiHead(site, ExactCore(site, sdpa, memory=Growth(1.0)))


def _make_self_block(site: Site, config: BackboneConfig) -> TransformerBlock:
    """Return a pre-norm block of exact self-attention and a feed-forward network."""
    return TransformerBlock(
        _make_attention(site), width=site.width, feed_forward=config.feed_forward,
        feed_forward_width=config.feed_forward_width, dropout=config.dropout,
        norm_epsilon=config.norm_epsilon,
    )  # fmt: skip


def _check_options(site: Site, config: BackboneConfig) -> None:
    """Raise `Unsupported` for options of the backbone that this stack cannot apply."""
    if site.causal:
        raise Unsupported(
            "TemporalLatentBottleneck attends in both directions within a chunk and gives one "
            "output per sequence, so it cannot be a language model: choose a task with one answer "
            "per sequence"
        )
    means = (Pooling.mean, Pooling.mean_over_padded, Pooling.mean_all)
    # Such a pooling lacks CLS only where the task answers tokens, which `keeps_length` refuses.
    answers_tokens = config.pooling in WITH_CLS and not site.cls
    if not answers_tokens and config.pooling not in means:
        raise Idle(
            "TemporalLatentBottleneck returns the tokens of its state, which must be averaged: got "
            f"model.backbone.pooling={config.pooling}; set it to mean",
            "backbone.pooling",
        )
    if config.feed_forward == FeedForward.none:
        raise Unsupported(
            "every layer of TemporalLatentBottleneck needs a feed-forward network: got "
            "model.backbone.feed_forward=none; set it to gelu, or another activation"
        )
    if config.positions in INSIDE:
        raise Idle(
            "TemporalLatentBottleneck adds positions to the tokens of each chunk, or the model "
            f"adds them to the whole sequence: got positions={config.positions.value}; set "
            "model.backbone.positions=none (for chunks), or learned, sinusoidal or axial",
            "backbone.positions",
        )

"""A stack whose sequence is halved between blocks of layers, as in Funnel-Transformer.

    h' = pool(h)                       each two neighbours become one; a CLS vector stays alone
    x  = first layer of the block: queries and residual from h', keys and values from h
    x  = the block's other layers, applied to x

With `query_only` off, keys and values of the first layer also come from h', so this works with any
mixer. If the model answers at every position, each position of the last block is repeated
2^(blocks - 1) times and added to the first block's output; the layers of a decoder follow.

If mixers apply positions themselves, a position pooled b times counts as the first of its 2^b
tokens, so neighbours are 2^b steps apart. The CLS vector is one step before the first.

Cost       Layers of block b have n / 2^b tokens; in the first one, keys have n / 2^(b-1). Compared
           with as many layers over all tokens, three blocks with equal numbers of layers take
           7 / 12 of the operations that are linear in n, and 7 / 16 of the quadratic ones; the
           first layer of a pooled block takes twice as many as the others. Decoder layers read all
           tokens.
Source     Dai, Lai, Yang and Le 2020, "Funnel-Transformer", arXiv:2006.03236, sections 2.2 and 2.3,
           and the code published with it.
Differs    The mean excludes padding, which the published code includes. A pooled position is real
           if one of its tokens is, as there. All tokens are used; that code drops the last one
           before each pooling to keep lengths even (`truncate_seq`), which is the same if it is
           padding. The last token of an odd length is pooled alone. A CLS vector is never pooled.
"""

import operator
from collections.abc import Sequence
from enum import StrEnum, auto
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone.stack import Blank, KeySource, PostNormStack, Stack
from lra.models.mixer import Flow, Layout, Unsupported
from lra.models.positions import At, Spacing


class PoolMode(StrEnum):
    """How two neighbours become one."""

    mean = auto()
    max = auto()


def even_blocks(depth: int, blocks: int) -> list[int]:
    """Divide `depth` layers into blocks; return the number of layers of each block.

    The numbers differ by at most one; the first blocks have more layers.
    """
    blocks = min(blocks, depth)
    return [depth // blocks + (block < depth % blocks) for block in range(blocks)]


def check_blocks(config: Any) -> None:
    """Raise ValueError if the options of pooling in `config` do not fit the number of layers."""
    if config.pool_decoder < 0:
        raise ValueError(
            f"pool_decoder, a number of layers, must be at least 0: got {config.pool_decoder}"
        )
    for name in ("pool_layers", "pool_repeats"):
        value = getattr(config, name)
        if value and (len(value) != config.pool_blocks or min(value) < 1):
            raise ValueError(
                f"{name} must list a positive number for each of the {config.pool_blocks} blocks "
                f"(pool_blocks), or be empty: got {value}"
            )
    if config.pool_layers and sum(config.pool_layers) != config.depth:
        raise ValueError(
            f"pool_layers, the numbers of layers of each block, must add up to depth="
            f"{config.depth}: got {config.pool_layers}"
        )
    layers, repeats = config.block_layers, config.pool_repeats
    if repeats and (len(layers) < len(repeats) or any(map(operator.mod, layers, repeats))):
        raise ValueError(
            "each entry of pool_repeats must divide the number of layers of its block: got "
            f"{repeats} for blocks of {layers} layers; change depth or pool_layers"
        )


def poolings(layers: Sequence[int], *, query_only: bool) -> list[int]:
    """Return, for each layer of all blocks, how often the longest sequence it reads was pooled.

    With `query_only`, a block's first layer also reads the sequence before, pooled once less.
    """
    return [
        block - (query_only and block > 0 and not layer)
        for block, count in enumerate(layers)
        for layer in range(count)
    ]


class Cut(NamedTuple):
    """How a stack is divided into blocks."""

    layers: Sequence[int]
    """Number of layers of each block; the remaining layers of the stack form the decoder."""
    has_cls: bool
    """Whether position 0 is a CLS vector."""
    query_only: bool
    mode: PoolMode
    full: bool
    """Whether the output has the input's length."""


def pooled_length(length: int, times: int, *, has_cls: bool) -> int:
    """Return the length after halving it `times` times, rounded up; a CLS vector is not pooled."""
    halved: int = -(-(length - has_cls) // 2**times)
    return halved + has_cls


def pooled_mask(keep: Bool[Tensor, "b l"], *, has_cls: bool) -> Bool[Tensor, "b m"]:
    """Return which of m pooled positions contain a real token, given which tokens are real."""
    first, rest = keep[:, :has_cls], keep[:, has_cls:]
    pairs = in_pairs(F.pad(rest, (0, rest.shape[1] % 2)))
    return torch.cat((first, pairs.any(2)), dim=1)


def in_pairs(x: Shaped[Tensor, "b l *d"]) -> Shaped[Tensor, "b m 2 *d"]:
    """Reshape an even length into m = l / 2 pairs of neighbours."""
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:])


def pool_pairs(
    x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None, *, has_cls: bool, mode: PoolMode
) -> Float[Tensor, "b m d"]:
    """Return one vector for each pair of neighbours; padding is excluded.

    Args:
        x: The sequence, l tokens; the last one of an odd number is pooled alone.
        keep: True for real tokens; None: all are real. A pair without real tokens becomes zeros.
        has_cls: Whether position 0 is a CLS vector, which stays as it is.
        mode: How two vectors are combined.
    """
    first, rest = x[:, :has_cls], x[:, has_cls:]
    odd = rest.shape[1] % 2
    if keep is None and not odd:
        pairs = in_pairs(rest)
        return torch.cat((first, pairs.mean(2) if mode == PoolMode.mean else pairs.amax(2)), dim=1)
    real = rest.new_ones(rest.shape[:2], dtype=torch.bool) if keep is None else keep[:, has_cls:]
    real = in_pairs(F.pad(real, (0, odd)))[..., None]
    pairs = in_pairs(F.pad(rest, (0, 0, 0, odd)))
    if mode == PoolMode.mean:
        pooled = pairs.masked_fill(~real, 0.0).sum(2) / real.sum(2).clamp(min=1)
    else:
        largest = pairs.masked_fill(~real, torch.finfo(x.dtype).min).amax(2)
        pooled = largest.masked_fill(~real.any(2), 0.0)
    return torch.cat((first, pooled), dim=1)


def repeat_positions(
    x: Float[Tensor, "b m d"], times: int, length: int, *, has_cls: bool
) -> Float[Tensor, "b l d"]:
    """Repeat each position `times` times, except the CLS vector; return the first `length`."""
    first, rest = x[:, :has_cls], x[:, has_cls:]
    return torch.cat((first, rest.repeat_interleave(times, dim=1)[:, : length - has_cls]), dim=1)


class Level(NamedTuple):
    """One sequence length in a stack, with the masks for mixers and the positions of tokens."""

    keep: Bool[Tensor, "b m"] | None
    layout: Layout
    blank: Blank
    steps: Spacing


class PooledStack(Stack):
    """Blocks of layers, each over a sequence of half the length, then a norm.

    Args:
        blocks: All layers, those of the decoder last.
        cut: How the layers are divided into blocks.
        inside: Whether mixers apply positions themselves.
        options: Arguments of `Stack`.
    """

    def __init__(self, blocks: Sequence[Any], cut: Cut, *, inside: bool, **options: Any) -> None:
        """Make the stack; of a layout it supports `keep` alone, because only this can be pooled."""
        super().__init__(blocks, **options)
        self.cut, self.inside = cut, inside
        self.supported = [(name, facts & {"keep"}) for name, facts in self.supported]

    def level(self, keep: Bool[Tensor, "b m"] | None, steps: Spacing) -> Level:
        """Return the level for a sequence with the mask `keep` and the positions `steps`."""
        return Level(keep, *self.checked(Layout(keep=keep)), steps)

    def shorter(self, level: Level, number: int) -> Level:
        """Return the level of block `number` (from 1), given the level of the block before it."""
        step, has_cls = 2**number, self.cut.has_cls
        keep = None if level.keep is None else pooled_mask(level.keep, has_cls=has_cls)
        # Behind a CLS vector, the first token is at position 1, and CLS counts as one step before.
        return self.level(keep, Spacing(1 - step if has_cls else 0, step))

    def forward(self, flow: Flow, layout: Layout) -> Flow:  # type: ignore[override]
        """Apply every block and, if the output must have full length, the decoder's layers."""
        self.refuse(layout._replace(keep=None))  # refuses every other fact
        has_cls, length = self.cut.has_cls, flow.x.shape[1]
        flow, full = self.opened(flow), self.level(layout.keep, Spacing())
        layers, level, first_output = iter(self.blocks), full, flow.x
        for number, count in enumerate(self.cut.layers):
            sources = [self.source(None, level, level)] * count
            if number:
                longer, level = level, self.shorter(level, number)
                pooled = pool_pairs(flow.x, longer.keep, has_cls=has_cls, mode=self.cut.mode)
                sources = [self.source(None, level, level)] * count
                if self.cut.query_only:
                    sources[0] = self.source(flow.x, level, longer)
                flow = flow.with_x(pooled)
            for source in sources:
                flow = self.through(next(layers), flow, level.layout, level.blank, source)
            if not number:
                first_output = flow.x
        if self.cut.full:
            times = 2 ** (len(self.cut.layers) - 1)
            repeated = repeat_positions(flow.x, times, length, has_cls=has_cls)
            flow = flow.with_x(first_output + repeated)
            for block in layers:
                flow = self.through(block, flow, full.layout, full.blank)
        return flow.with_x(self.closed(flow.x))

    def source(
        self, x: Float[Tensor, "b s d"] | None, queries: Level, keys: Level
    ) -> KeySource | None:
        """Return the source of a layer's keys and values: `x`, or if that is None its input.

        Return None if the layer can run as in a stack without pooling: it reads only its input, and
        applies no positions or the usual ones.
        """
        at = At(queries.steps, keys.steps)
        if x is None and (not self.inside or at.keys == Spacing()):
            return None
        return KeySource(x, keys.layout, keys.blank, at)

    def mask_out(self, keep: Bool[Tensor, "b l"]) -> Bool[Tensor, "b m"]:
        """Return which of m output positions are real, given which of l inputs are (`keep`)."""
        for _ in self.cut.layers[1:] if not self.cut.full else ():
            keep = pooled_mask(keep, has_cls=self.cut.has_cls)
        return keep


class PostNormPooledStack(PooledStack, PostNormStack):
    """A norm, then blocks as in `PooledStack`, whose layers each end with a norm."""


def check_pooled_mixer(mixer: nn.Module, *, query_only: bool, inside: bool) -> None:
    """Raise `Unsupported` for a mixer that cannot be part of a pooled block.

    Args:
        mixer: The mixer of a layer.
        query_only: Whether keys and values come from the longer sequence.
        inside: Whether the mixer applies positions itself.
    """
    if not (query_only or inside) or getattr(mixer, "attends_at", False):
        return
    name = type(mixer).__name__
    if query_only:
        raise Unsupported(
            f"{name} cannot attend from a pooled sequence to the longer one before it: got "
            "model.backbone.pool_query_only=true; set it to false, or choose a family with cross "
            "attention that does not depend on order by itself (softmax, sdpa, funnel)"
        )
    raise Unsupported(
        f"{name} derives positions from the index of a token, but two neighbours in a pooled "
        "sequence are several tokens apart: choose model.backbone.positions=learned, sinusoidal "
        "or none, or a family with cross attention (softmax, sdpa, funnel)"
    )

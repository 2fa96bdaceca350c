"""A stack whose sequence is halved between blocks of layers, as in Funnel-Transformer.

    h' = pool(h)                       neighbours two by two; a CLS vector stays by itself
    x  = first layer of the block: queries and residual of h', keys and values of h
    x  = the block's other layers over x

With `query_only` off, keys and values of the first layer are of h' as well, so that it is a layer
like any other, of any mixer. Where the model answers at every position, each position of the last
block is repeated 2^(blocks - 1) times and added to the first block's output; more layers follow.

Where mixers apply positions themselves, those of a pooled sequence are those of the tokens it is
made of: at step 2^b, after b times, the first token of each; the CLS vector stands one step before.

Cost       a layer of block b has n / 2^b tokens, the first keys of n / 2^(b-1): three blocks of
           equal numbers of layers do 7 / 12 of the linear work of as many layers over all tokens,
           and 7 / 16 of the quadratic, a pooled block's first layer counting twice. Layers of a
           decoder have all tokens.
Source     Dai, Lai, Yang and Le 2020, "Funnel-Transformer", arXiv:2006.03236, sections 2.2 and 2.3,
           and the code published with it.
Differs    A pool leaves padding out of the mean, which the published code counts, and is real where
           one of both tokens is, as there. No token is dropped: that code drops the last one
           before each pooling to keep lengths even (`truncate_seq`); where it is padding, the
           function is the same. A length that does not divide ends in a pool of one. A CLS vector
           always stays by itself; without one position 0 is a token like others.
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
    """Return the layers of each block, as equal as possible, the first blocks longer."""
    blocks = min(blocks, depth)
    return [depth // blocks + (block < depth % blocks) for block in range(blocks)]


def check_blocks(config: Any) -> None:
    """Raise ValueError if layers do not fill the blocks.

    Args:
        config: Options of the backbone.
    """
    if config.pool_decoder < 0:
        raise ValueError(f"pool_decoder must be at least 0: got {config.pool_decoder}")
    for name in ("pool_layers", "pool_repeats"):
        value = getattr(config, name)
        if value and (len(value) != config.pool_blocks or min(value) < 1):
            raise ValueError(
                f"{name} takes a positive number for each of pool_blocks={config.pool_blocks} "
                f"blocks, or an empty list: got {value}"
            )
    if config.pool_layers and sum(config.pool_layers) != config.depth:
        raise ValueError(
            f"pool_layers must add up to depth={config.depth}: got {config.pool_layers}"
        )
    layers, repeats = config.block_layers, config.pool_repeats
    if repeats and (len(layers) < len(repeats) or any(map(operator.mod, layers, repeats))):
        raise ValueError(
            f"pool_repeats must divide the layers of each block: got {repeats} for blocks of "
            f"{layers} layers; change depth or pool_layers"
        )


def poolings(layers: Sequence[int], *, query_only: bool) -> list[int]:
    """Return, for each layer of the blocks, how many times its longest sequence was pooled."""
    return [
        block - (query_only and block > 0 and not layer)
        for block, count in enumerate(layers)
        for layer in range(count)
    ]


class Cut(NamedTuple):
    """How a stack is divided into blocks."""

    layers: Sequence[int]
    """Of each block; further layers of the stack are the decoder's."""
    has_cls: bool
    """Whether position 0 is a CLS vector."""
    query_only: bool
    mode: PoolMode
    full: bool
    """Whether the output has the input's length."""


def pooled_length(length: int, times: int, *, has_cls: bool) -> int:
    """Return the length after `times` poolings by two; the CLS vector is not pooled."""
    halved: int = -(-(length - has_cls) // 2**times)
    return halved + has_cls


def pooled_mask(keep: Bool[Tensor, "b l"], *, has_cls: bool) -> Bool[Tensor, "b m"]:
    """Return which positions contain a real token."""
    first, rest = keep[:, :has_cls], keep[:, has_cls:]
    pairs = in_pairs(F.pad(rest, (0, rest.shape[1] % 2)))
    return torch.cat((first, pairs.any(2)), dim=1)


def in_pairs(x: Shaped[Tensor, "b l *d"]) -> Shaped[Tensor, "b m 2 *d"]:
    """Fold the length into pairs of neighbours."""
    return x.reshape(x.shape[0], x.shape[1] // 2, 2, *x.shape[2:])


def pool_pairs(
    x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None, *, has_cls: bool, mode: PoolMode
) -> Float[Tensor, "b m d"]:
    """Return one vector for every two real tokens; zeros if neither is real.

    Args:
        x: The sequence; the last of an odd number is by itself.
        keep: Which tokens are real; None: all.
        has_cls: Whether position 0 stays as it is.
        mode: What two become.
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
        y = pairs.masked_fill(~real, 0.0).sum(2) / real.sum(2).clamp(min=1)
    else:
        largest = pairs.masked_fill(~real, torch.finfo(x.dtype).min).amax(2)
        y = largest.masked_fill(~real.any(2), 0.0)
    return torch.cat((first, y), dim=1)


def repeat_positions(
    x: Float[Tensor, "b m d"], times: int, length: int, *, has_cls: bool
) -> Float[Tensor, "b l d"]:
    """Repeat every position `times` times, but the CLS vector once; cut the result at `length`."""
    first, rest = x[:, :has_cls], x[:, has_cls:]
    return torch.cat((first, rest.repeat_interleave(times, dim=1)[:, : length - has_cls]), dim=1)


class Level(NamedTuple):
    """One sequence length in a stack, with the masks for mixers and the positions of tokens."""

    keep: Bool[Tensor, "b m"] | None
    layout: Layout
    blank: Blank
    steps: Spacing


class PooledStack(Stack):
    """Blocks of layers over ever shorter sequences, then a norm.

    Args:
        blocks: Every layer, those of the decoder last.
        cut: How they form blocks.
        inside: Whether mixers apply positions themselves.
        options: As of `Stack`.

    Raises:
        Unsupported: A mixer cannot attend from a pooled sequence, or not at its positions.
    """

    def __init__(self, blocks: Sequence[Any], cut: Cut, *, inside: bool, **options: Any) -> None:
        super().__init__(blocks, **options)
        self.cut, self.inside = cut, inside
        self.supported = [(name, facts & {"keep"}) for name, facts in self.supported]

    def level(self, keep: Bool[Tensor, "b m"] | None, steps: Spacing) -> Level:
        """Return the level for a sequence with the mask `keep` after `steps` poolings."""
        return Level(keep, *self.checked(Layout(keep=keep)), steps)

    def shorter(self, level: Level, number: int) -> Level:
        """Return the level of block `number`, given the level of the block before it."""
        step, has_cls = 2**number, self.cut.has_cls
        keep = None if level.keep is None else pooled_mask(level.keep, has_cls=has_cls)
        return self.level(keep, Spacing(1 - step if has_cls else 0, step))

    def forward(self, flow: Flow, layout: Layout) -> Flow:  # type: ignore[override]
        """Pass through every block; without a decoder, the output is shorter."""
        self.refuse(layout._replace(keep=None))
        has_cls, length = self.cut.has_cls, flow.x.shape[1]
        flow, full = self.opened(flow), self.level(layout.keep, Spacing())
        layers, level, low = iter(self.blocks), full, flow.x
        for number, count in enumerate(self.cut.layers):
            sources = [self.source(None, level, level)] * count
            if number:
                longer, level = level, self.shorter(level, number)
                x = pool_pairs(flow.x, longer.keep, has_cls=has_cls, mode=self.cut.mode)
                sources = [self.source(None, level, level)] * count
                if self.cut.query_only:
                    sources[0] = self.source(flow.x, level, longer)
                flow = flow.with_x(x)
            for source in sources:
                flow = self.through(next(layers), flow, level.layout, level.blank, source)
            if not number:
                low = flow.x
        if self.cut.full:
            times = 2 ** (len(self.cut.layers) - 1)
            flow = flow.with_x(low + repeat_positions(flow.x, times, length, has_cls=has_cls))
            for block in layers:
                flow = self.through(block, flow, full.layout, full.blank)
        return flow.with_x(self.closed(flow.x))

    def source(
        self, x: Float[Tensor, "b s d"] | None, queries: Level, keys: Level
    ) -> KeySource | None:
        """Return the source of keys and values for a layer, or None if it is the layer's input."""
        at = At(queries.steps, keys.steps)
        if x is None and (not self.inside or at.keys == Spacing()):
            return None
        return KeySource(x, keys.layout, keys.blank, at)

    def mask_out(self, keep: Bool[Tensor, "b l"]) -> Bool[Tensor, "b m"]:
        """Return which positions of the output are real, from `keep` of the input."""
        for _ in self.cut.layers[1:] if not self.cut.full else ():
            keep = pooled_mask(keep, has_cls=self.cut.has_cls)
        return keep


class PostNormPooledStack(PooledStack, PostNormStack):
    """A norm, then blocks over ever shorter sequences; each layer ends with a norm."""


def check_pooled_mixer(mixer: nn.Module, *, query_only: bool, inside: bool) -> None:
    """Raise `Unsupported` for a mixer that cannot be part of a pooled block.

    Args:
        mixer: Of one of its layers.
        query_only: Whether keys and values come from the longer sequence.
        inside: Whether it applies positions itself.
    """
    if not (query_only or inside) or getattr(mixer, "attends_at", False):
        return
    name = type(mixer).__name__
    if query_only:
        raise Unsupported(
            f"{name} cannot attend from a pooled sequence to a longer one: got "
            "model.backbone.pool_query_only=true; set it to false, or choose cross attention "
            "that does not depend on order by itself (softmax, sdpa, funnel)"
        )
    raise Unsupported(
        f"{name} derives positions from the index of a token, but two neighbours in a pooled "
        "sequence are several tokens apart: choose model.backbone.positions=learned, sinusoidal "
        "or none, or a family of cross attention (softmax, sdpa, funnel)"
    )

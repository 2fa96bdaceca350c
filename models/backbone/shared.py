"""What the one model does where ranks share each sequence: where tokens stand, and pooling.

A rank embeds, mixes and judges the tokens of its part. The CLS vector stands before the first part.
What is answered once for a sequence is pooled over ranks, each of which then has the answer.
"""

from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.backbone import placing
from lra.models.backbone.config import BackboneConfig, TaskFacts
from lra.models.backbone.heads import READ_FIRST, Pooling, pool
from lra.models.backbone.pooled import PooledStack
from lra.models.backbone.reversible import ReversibleStack
from lra.models.backbone.stack import Stack
from lra.models.context import Context
from lra.models.mixer import Layout, State, Unsupported
from lra.models.positions import AxialPositions


class Beginning(NamedTuple):
    """Where the tokens of a pass begin."""

    start: Int[Tensor, " b"] | None
    """Position of each row's first token in what is added to the input; None: 0."""
    cls: bool
    """Whether a CLS vector is the first of them."""


class Shared(Protocol):
    """A model of whose parts some want whole sequences."""

    stack: nn.Module
    config: BackboneConfig
    facts: TaskFacts
    query: nn.Parameter | None


def check_shared(layout: Layout, model: Shared, state: State) -> None:
    """Refuse what ranks cannot share; without ranks, nothing.

    Args:
        layout: With the ranks, if any.
        model: Which reads their parts.
        state: Along time.

    Raises:
        Unsupported: Stack or options want whole sequences.
        ValueError: All parts together are longer than the model was built for.
    """
    if layout.context is None:
        return
    stack, config, facts = model.stack, model.config, model.facts
    if layout.context.whole > facts.max_length:
        raise ValueError(
            f"this model takes 1 to {facts.max_length} tokens: got parts of "
            f"{[*layout.context.lengths]}; truncate, or build it with a larger max_length"
        )
    plain = isinstance(stack, Stack) and not isinstance(stack, PooledStack | ReversibleStack)
    obstacles = {
        f"residual={config.residual.value}": isinstance(stack, ReversibleStack),
        f"block_layers={config.block_layers}, which pools": isinstance(stack, PooledStack),
        "a family with a stack of its own": not isinstance(stack, Stack),
        "permutation modelling": model.query is not None,
        "a state along time": state is not None,
        f"word_dropout={config.word_dropout:g}": bool(config.word_dropout),
        f"head_dropout={config.head_dropout:g}": bool(config.head_dropout),
        "tied_dropout=true": config.tied_dropout,
    }
    reasons = [name for name, there in obstacles.items() if there]
    if reasons or not plain:
        raise Unsupported(
            f"ranks cannot share a sequence under {', '.join(reasons)}: got hardware.context="
            f"{layout.context.ranks}; set it to 1, or choose a plain stack of mixers"
        )


def beginning(
    context: Context | None,
    x: Float[Tensor, "b l d"],
    start: Int[Tensor, " b"] | None,
    positions: nn.Module | None,
    *,
    cls: bool,
) -> Beginning:
    """Return where the tokens begin; a CLS vector is counted in the lengths of ranks."""
    if context is None:
        return Beginning(start, cls)
    offset, first = context.offset, context.rank == 0
    # The grid of axial positions begins behind the CLS vector.
    offset -= cls and not first and isinstance(positions, AxialPositions)
    place = None if first else torch.full((len(x),), offset, device=x.device)
    return Beginning(place, cls and first)


def behind_cls(
    cls: Float[Tensor, " d"],
    x: Float[Tensor, "b l d"],
    keep: Bool[Tensor, "b l"] | None,
    layout: Layout,
    *,
    copied: bool,
) -> tuple[Float[Tensor, "b m d"], Bool[Tensor, "b m"] | None, Layout]:
    """Return tokens and mask behind a CLS vector, and the layout; of ranks it is the first's."""
    context = layout.context
    if context is None:
        return *placing.behind_cls(cls, x, keep, copied=copied), layout
    layout = layout._replace(context=context.longer_first())
    if context.rank == 0:
        return *placing.behind_cls(cls, x, keep, copied=copied), layout
    # Every rank has a gradient of every parameter.
    return x + 0 * cls.to(x.dtype), keep, layout


def with_cls(
    keep: Bool[Tensor, "b p l"] | None, context: Context | None
) -> tuple[Bool[Tensor, "b p m"] | None, Context | None]:
    """Return the mask and the ranks of tokens behind a CLS vector, which is real."""
    if keep is not None and (context is None or context.rank == 0):
        keep = F.pad(keep, (1, 0), value=True)
    return keep, None if context is None else context.longer_first()


def real_of(
    stack: nn.Module, keep: Bool[Tensor, "b p l"] | None, x: Float[Tensor, "n placed d"]
) -> Bool[Tensor, "n placed"] | None:
    """Return which outputs of a stack are real; None: all."""
    flat = None if keep is None else keep.flatten(0, 1)
    if flat is not None and isinstance(stack, Stack):
        return stack.mask_out(flat)
    if flat is not None and flat.shape[1] != x.shape[1]:
        return None  # the stack answers with tokens of its own, all of them real
    return flat


def pool_shared(
    x: Float[Tensor, "b l d"],
    keep: Bool[Tensor, "b l"] | None,
    pooling: Pooling,
    context: Context | None,
) -> Float[Tensor, "b d"]:
    """Reduce the length of all ranks, as `lra.models.backbone.heads.pool` that of one."""
    if context is None:
        return pool(x, keep, pooling)
    if pooling in READ_FIRST:
        return context.total(x[:, 0] * (context.rank == 0))
    if pooling == Pooling.last:
        return context.total(_last(x, keep, context))
    if keep is None or pooling == Pooling.mean_all:
        return context.total(x.sum(1)) / context.whole
    total = context.total(x.masked_fill(~keep[..., None], 0).sum(1))
    if pooling == Pooling.mean_over_padded:
        return total / context.whole
    number = context.collected(keep.sum(1, keepdim=True)).sum(0)
    return total / number.clamp(min=1)


def _last(
    x: Float[Tensor, "b l d"], keep: Bool[Tensor, "b l"] | None, context: Context
) -> Float[Tensor, "b d"]:
    """Return the output at the last real token where it is on this rank, else zeros."""
    keep = torch.ones_like(x[..., 0], dtype=torch.bool) if keep is None else keep
    real = keep.any(1)
    last = torch.arange(x.shape[1], device=x.device).mul(keep).amax(1)
    picked = x.gather(1, last[:, None, None].expand(-1, 1, x.shape[2])).squeeze(1)
    later = context.collected(real.to(torch.uint8))[context.rank + 1 :].bool().any(0)
    return picked.masked_fill(~(real & ~later)[:, None], 0)

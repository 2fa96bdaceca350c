"""The attention weights that a core implies, for any way of computing its outputs.

A core whose outputs are weighted means of its values (`Traits.row_stochastic`) gives its weights to
whoever hands it unit vectors for values: o[q, j] = A[q, j]. So the weights of a window, of hashed
buckets or of a feature map are read as those of literal softmax are, without a method of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.length_pooling import PooledStack
from lra.models.backbone.stack import Stack, family
from lra.models.mixer import Layout, Unsupported
from lra.models.multi_head import Core, MultiHead

KEYS_AT_ONCE = 256


class CoreCall(NamedTuple):
    """The arguments of one call of an attention core, without the values."""

    q: Float[Tensor, "b h l k"]
    k: Float[Tensor, "b h s k"]
    layout: Layout
    value_heads: int | None = None
    """None: as many as of keys."""


def weights(
    core: Core, call: CoreCall, *, keys_at_once: int = KEYS_AT_ONCE
) -> Iterator[tuple[int, Float[Tensor, "b h l _"]]]:
    """Yield the first key of each piece, and the weights of all queries on the keys of the piece.

    Args:
        core: A core with `traits.row_stochastic`.
        call: What it was called with.
        keys_at_once: Keys of a piece: memory grows with it, time falls.
    """
    q, k, layout, value_heads = call
    batch, heads, keys = len(k), value_heads or k.shape[1], k.shape[2]
    for first in range(0, keys, keys_at_once):
        last = min(first + keys_at_once, keys)
        unit = torch.zeros(keys, last - first, dtype=k.dtype, device=k.device)
        unit[first:last].fill_diagonal_(1.0)
        yield first, core(q, k, unit.expand(batch, heads, -1, -1), layout)


def attention_of(mixer: nn.Module) -> nn.Module:
    """Return the multi-head attention of a mixer, also where it is one half of the mixer."""
    inside = [part for part in mixer.children() if isinstance(part, MultiHead)]
    return inside[0] if len(inside) == 1 else mixer


def readable(stack: nn.Module) -> tuple[dict[int, nn.Module], dict[int, str]]:
    """Return, by layer, the cores whose weights can be read, and reasons for the other layers.

    Raises:
        Unsupported: The stack has no layers of mixers.
    """
    if not isinstance(stack, Stack):
        raise Unsupported(
            f"{family(stack)} arranges its layers itself, so it has no mixers whose attention "
            "weights could be read"
        )
    if isinstance(stack, PooledStack):
        raise Unsupported(
            "in a layer that reads a pooled sequence, an attention weight belongs to several "
            "tokens together: set model.backbone.pool_blocks=1, or measure spans by gradients or "
            "by occlusion"
        )
    cores, reasons = {}, {}
    for layer, block in enumerate(stack.blocks):
        mixer: Any = attention_of(cast(Any, block).mixer)
        core = getattr(mixer, "core", None)
        if not mixer.traits.row_stochastic:
            reasons[layer] = (
                f"the outputs of {family(mixer)} are not weighted means of values "
                "(traits.row_stochastic=False), so it has no attention weights"
            )
        elif sum(block is other for other in stack.blocks) > 1:
            reasons[layer] = (
                "several layers are one module, so their calls cannot be distinguished: set "
                "model.backbone.layer_groups=null"
            )
        elif not isinstance(core, nn.Module):
            reasons[layer] = (
                f"{family(mixer)} has no attention function on queries, keys and values, so there "
                "are no weights to read"
            )
        else:
            cores[layer] = core
    return cores, reasons


@contextmanager
def recorded_calls(
    cores: Mapping[int, nn.Module], *, detached: bool = True
) -> Iterator[dict[int, CoreCall]]:
    """Record the arguments of each core inside the context; the last call counts.

    A core that is handed more than queries, keys and values (landmarks, blocks, a second
    projection) is not in the answer: its weights are not those of one query on one key.

    Args:
        cores: By layer.
        detached: Whether no gradient goes back through what is recorded.
    """
    calls: dict[int, CoreCall] = {}

    def recorder(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if len(arguments) == 4 and isinstance(arguments[3], Layout):
                q, k, v, layout = arguments
                q, k = (x.detach() if detached else x for x in (q, k))
                calls[layer] = CoreCall(q, k, layout, v.shape[1])

        return hook

    handles = [core.register_forward_pre_hook(recorder(layer)) for layer, core in cores.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()

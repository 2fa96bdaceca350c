"""Read the attention weights of a core, however it computes its outputs.

If the outputs of a core are weighted means of its values (`Traits.row_stochastic`), call it with
unit vectors as values: output j at query q is then the weight A[q, j]. This works in the same way
for softmax, windows, hashed buckets and feature maps.
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
    """Number of heads of the values; None: as many as heads of keys."""


def weights(
    core: Core, call: CoreCall, *, keys_at_once: int = KEYS_AT_ONCE
) -> Iterator[tuple[int, Float[Tensor, "b h l _"]]]:
    """Yield attention weights for a few keys at a time: (number of the first key, weights).

    Args:
        core: A core with `traits.row_stochastic`.
        call: The arguments of the call whose weights are wanted.
        keys_at_once: Number of keys at a time; more keys take more memory and less time.
    """
    q, k, layout, value_heads = call
    batch, heads, keys = len(k), value_heads or k.shape[1], k.shape[2]
    for first in range(0, keys, keys_at_once):
        last = min(first + keys_at_once, keys)
        unit = torch.zeros(keys, last - first, dtype=k.dtype, device=k.device)
        unit[first:last].fill_diagonal_(1.0)
        yield first, core(q, k, unit.expand(batch, heads, -1, -1), layout)


def attention_of(mixer: nn.Module) -> nn.Module:
    """Return the only MultiHead child of `mixer`, if it has exactly one; else `mixer` itself."""
    children = [part for part in mixer.children() if isinstance(part, MultiHead)]
    return children[0] if len(children) == 1 else mixer


def readable(stack: nn.Module) -> tuple[dict[int, nn.Module], dict[int, str]]:
    """Return the cores of a stack whose attention weights can be read.

    Returns:
        The core by number of layer; and for every other layer, the reason why it has none.

    Raises:
        Unsupported: The stack arranges its layers itself, or pools the sequence.
    """
    if not isinstance(stack, Stack):
        raise Unsupported(
            f"{family(stack)} arranges its layers itself, so lra cannot read the attention weights "
            "of its mixers: choose another family"
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
                f"{family(mixer)} has no attention weights, because its outputs are not weighted "
                "means of values (traits.row_stochastic=False)"
            )
        elif sum(block is stack.blocks[other] for other in stack.visits) > 1:
            reasons[layer] = (
                "several layers share one module, so lra cannot distinguish their calls: set "
                "model.backbone.layer_groups=null, and loop_first=null"
            )
        elif not isinstance(core, nn.Module):
            reasons[layer] = (
                f"{family(mixer)} computes no attention from queries, keys and values, so it has "
                "no attention weights that could be read"
            )
        else:
            cores[layer] = core
    return cores, reasons


@contextmanager
def recorded_calls(
    cores: Mapping[int, nn.Module], *, detached: bool = True
) -> Iterator[dict[int, CoreCall]]:
    """Record the arguments of each core's last call inside the context, by layer.

    It skips calls with arguments other than queries, keys, values and a layout (for example
    landmarks), because their weights do not belong to one query and one key.

    Args:
        cores: The cores by layer.
        detached: Whether the recorded queries and keys are detached from the graph of gradients.
    """
    calls: dict[int, CoreCall] = {}

    def make_hook(layer: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if len(arguments) == 4 and isinstance(arguments[3], Layout):
                q, k, v, layout = arguments
                q, k = (x.detach() if detached else x for x in (q, k))
                calls[layer] = CoreCall(q, k, layout, v.shape[1])

        return hook

    handles = [core.register_forward_pre_hook(make_hook(layer)) for layer, core in cores.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()

"""Fewer layers, or layers of their own: what is done to the stack of a trained model.

`keep_layers` leaves every so many-th layer, from which a smaller model learns on (DistilBERT, Sanh
et al. 2019, arXiv:1910.01108, which takes one of two). `unshare` gives each layer that was one
module with others a copy of its own: the function is the same until training moves them apart.
"""

import copy
from dataclasses import replace
from typing import Any, cast

from torch import nn

from lra.models.backbone.length_pooling import PooledStack
from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import Stack, family
from lra.models.mixer import Penalised, Unsupported


def keep_layers(model: Backbone, layers: int) -> None:
    """Keep `layers` of a model's layers: the last layer of each equal part.

    Raises:
        Unsupported: Its stack has no equal layers that could be left out.
        ValueError: The number does not divide that of the layers.
    """
    stack = _ordinary(model)
    depth = len(stack.blocks)
    if layers < 1 or depth % layers:
        raise ValueError(
            f"the number of layers to keep must divide the depth: got {layers} of {depth}; "
            "choose "
            f"{' or '.join(str(n) for n in range(1, depth) if depth % n == 0) or 'a deeper model'}"
        )
    if model.config.layer_groups is not None:
        raise Unsupported(
            "several layers are one module and cannot be removed one by one: train with "
            "model.backbone.layer_groups=null"
        )
    every = depth // layers
    stack.blocks = nn.ModuleList(list(stack.blocks)[every - 1 :: every])
    stack.supported = stack.supported[every - 1 :: every]
    model.config = replace(model.config, depth=layers)
    _count_again(model)


def unshare(model: Backbone) -> None:
    """Give every layer a separate copy of its module.

    Raises:
        Unsupported: No layers are one module.
    """
    stack = _ordinary(model)
    if len({*stack.blocks}) == len(stack.blocks):
        raise Unsupported(
            "every layer has separate weights already: train with "
            "model.backbone.layer_groups=1, or choose another method"
        )
    seen: set[nn.Module] = set()
    blocks = []
    for block in stack.blocks:
        blocks.append(copy.deepcopy(block) if block in seen else block)
        seen.add(block)
    stack.blocks = nn.ModuleList(blocks)
    model.config = replace(model.config, layer_groups=None)
    _count_again(model)


def _ordinary(model: Backbone) -> Stack:
    stack = model.stack
    if not isinstance(stack, Stack) or isinstance(stack, PooledStack):
        raise Unsupported(
            f"{family(stack)} is not a sequence of equal layers: choose another family, and set "
            "model.backbone.pool_blocks=1"
        )
    return stack


def _count_again(model: Backbone) -> None:
    """Collect the parts with penalties again, as the model does when it is built."""
    model.penalised = [cast(Any, p) for p in model.modules() if isinstance(p, Penalised)]

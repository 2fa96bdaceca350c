"""Changes of a trained model's layers: removing layers, and making shared layers separate.

`keep_layers` keeps every second layer, for example; a smaller model can be trained from these
(DistilBERT, Sanh et al. 2019, arXiv:1910.01108). `unshare` gives layers that share a module
separate copies: the function stays the same until further training changes them differently.
"""

import copy
from dataclasses import replace
from typing import Any, cast

from torch import nn

from lra.models.backbone.length_pooling import PooledStack
from lra.models.backbone.loop import LoopStack
from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import Stack, family
from lra.models.mixer import Penalised, Unsupported


def keep_layers(model: Backbone, layers: int) -> None:
    """Keep only `layers` layers of a model: the last layer of each of so many equal parts.

    Raises:
        Unsupported: The model is not a stack of equal, separate layers.
        ValueError: `layers` does not divide the number of layers.
    """
    stack = _plain_stack(model)
    depth = len(stack.blocks)
    if layers < 1 or depth % layers:
        raise ValueError(
            f"the number of layers to keep must divide the number of layers: got {layers} of "
            f"{depth}; choose "
            f"{' or '.join(str(n) for n in range(1, depth) if depth % n == 0) or 'a deeper model'}"
        )
    if model.config.layer_groups is not None:
        raise Unsupported(
            "several layers share one module, so that single layers cannot be removed: train with "
            "model.backbone.layer_groups=null"
        )
    step = depth // layers
    stack.blocks = nn.ModuleList(list(stack.blocks)[step - 1 :: step])
    stack.supported = stack.supported[step - 1 :: step]  # one entry for each layer
    model.config = replace(model.config, depth=layers)
    _update_penalised(model)


def unshare(model: Backbone) -> None:
    """Give every layer a separate copy of its module.

    Raises:
        Unsupported: No layers share a module.
    """
    stack = _plain_stack(model)
    if len({*stack.blocks}) == len(stack.blocks):
        raise Unsupported(
            "every layer has separate weights already: train with "
            "model.backbone.layer_groups=1, or choose another method"
        )
    used: set[nn.Module] = set()
    blocks = []
    for block in stack.blocks:
        blocks.append(copy.deepcopy(block) if block in used else block)
        used.add(block)
    stack.blocks = nn.ModuleList(blocks)
    model.config = replace(model.config, layer_groups=None)
    _update_penalised(model)


def _plain_stack(model: Backbone) -> Stack:
    """Return the model's stack if it is a sequence of equal layers; else raise `Unsupported`."""
    stack = model.stack
    if not isinstance(stack, Stack) or isinstance(stack, PooledStack | LoopStack):
        raise Unsupported(
            f"{family(stack)} is not a sequence of equal layers: choose another family, and set "
            "model.backbone.pool_blocks=1 and loop_first=null"
        )
    return stack


def _update_penalised(model: Backbone) -> None:
    """Update the model's list of parts with penalties, as when the model is built."""
    model.penalised = [cast(Any, p) for p in model.modules() if isinstance(p, Penalised)]

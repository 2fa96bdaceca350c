"""The core of a mixer: its function of queries, keys and values, between the projections."""

from typing import cast

import torch
from torch import nn

from lra.models.mixer import Unsupported
from lra.models.multi_head import Core, HasCore


def core_of(mixer: nn.Module) -> Core:
    """Return the attention function of a mixer, in evaluation mode and without gradients.

    Raises:
        Unsupported: The mixer has no such function, or the function has parameters that training
            would have to learn; here they are untrained.
    """
    name = type(mixer).__name__
    if not isinstance(mixer, HasCore):
        raise Unsupported(
            f"{name} has no attention function that takes queries, keys and values: choose "
            "another family"
        )
    core = mixer.attention_core()
    learned = [key for key, _ in cast(nn.Module, core).named_parameters()]
    if learned:
        raise Unsupported(
            f"the attention function of {name} has parameters ({', '.join(learned)}) that need "
            "training, but this runner measures untrained functions: choose options without such "
            "parameters, for example model.mixer.conv_kernel=0 or "
            "model.mixer.projection=frozen_jl"
        )
    return cast(Core, cast(nn.Module, core).eval().requires_grad_(False))


def move_core(core: Core, device: torch.device, dtype: torch.dtype) -> Core:
    """Move the buffers of a core to a device and number format; integer buffers stay integers."""
    return cast(Core, cast(nn.Module, core).to(device=device, dtype=dtype))

"""What a mixer computes between its projections: a function of queries, keys and values."""

from typing import cast

import torch
from torch import nn

from lra.models.mixer import Unsupported
from lra.models.multi_head import Core, HasCore


def core_of(mixer: nn.Module) -> Core:
    """Return the core of a mixer, in eval mode.

    Raises:
        Unsupported: It has none, or one whose function was to be learned: parameters
            that nobody trained would be measured, and not the method.
    """
    name = type(mixer).__name__
    if not isinstance(mixer, HasCore):
        raise Unsupported(f"{name} has no core that takes queries, keys and values")
    core = mixer.attention_core()
    learned = [key for key, _ in cast(nn.Module, core).named_parameters()]
    if learned:
        raise Unsupported(
            f"the core of {name} has parameters of its own ({', '.join(learned)}), which belong "
            "to the training of a whole model: choose options without them, as in "
            "model.mixer.conv_kernel=0 or model.mixer.projection=frozen_jl"
        )
    return cast(Core, cast(nn.Module, core).eval().requires_grad_(False))


def move_core(core: Core, device: torch.device, dtype: torch.dtype) -> Core:
    """Move a core's buffers; integers keep their type."""
    return cast(Core, cast(nn.Module, core).to(device=device, dtype=dtype))

"""The core of a mixer between its projections: a function of queries, keys and values."""

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
        raise Unsupported(
            f"{name} has no attention function that takes queries, keys and values: choose "
            "another family"
        )
    core = mixer.attention_core()
    learned = [key for key, _ in cast(nn.Module, core).named_parameters()]
    if learned:
        raise Unsupported(
            f"the attention function of {name} has learned parameters ({', '.join(learned)}), and "
            "this measurement uses an untrained function: choose options without such "
            "parameters, for example model.mixer.conv_kernel=0 or "
            "model.mixer.projection=frozen_jl"
        )
    return cast(Core, cast(nn.Module, core).eval().requires_grad_(False))


def move_core(core: Core, device: torch.device, dtype: torch.dtype) -> Core:
    """Move a core's buffers; integer buffers keep their type."""
    return cast(Core, cast(nn.Module, core).to(device=device, dtype=dtype))

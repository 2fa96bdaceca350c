"""What any mixer is before its traits matter: a module whose weights are there."""

from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from lra.conf.short_values import short_list


def checked_module(mixer: object) -> nn.Module:
    """Return a mixer as a module.

    Raises:
        TypeError: It is no `nn.Module`, so its parameters would be lost.
        ValueError: It has weights without a shape, which nothing can draw, count or share out.
    """
    if not isinstance(mixer, nn.Module):
        name = type(mixer).__name__
        raise TypeError(f"a mixer must be an nn.Module: got {name}; derive from nn.Module")
    tensors = chain(mixer.named_parameters(), mixer.named_buffers())
    if lazy := [key for key, tensor in tensors if is_lazy(tensor)]:
        raise ValueError(
            f"the layer has lazy weights ({short_list(lazy)}), whose shapes PyTorch learns from "
            "a first batch: give their sizes, for example nn.Linear(width, …) in place of "
            "nn.LazyLinear(…)"
        )
    return mixer

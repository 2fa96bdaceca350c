"""Check that a mixer is an `nn.Module` whose weights have shapes."""

from itertools import chain

from torch import nn
from torch.nn.parameter import is_lazy

from lra.conf.short_values import short_list


def checked_module(mixer: object) -> nn.Module:
    """Return `mixer`, checked to be a module whose weights all have a shape.

    Raises:
        TypeError: It is no `nn.Module`, so an optimiser would miss its parameters.
        ValueError: It has lazy weights, which have no shape before a first batch.
    """
    if not isinstance(mixer, nn.Module):
        name = type(mixer).__name__
        raise TypeError(f"a mixer must be an nn.Module: got {name}; derive from nn.Module")
    tensors = chain(mixer.named_parameters(), mixer.named_buffers())
    if lazy := [key for key, tensor in tensors if is_lazy(tensor)]:
        raise ValueError(
            f"the layer has lazy weights ({short_list(lazy)}), which have no shape before the "
            "first batch: give their sizes, for example nn.Linear(width, …) in place of "
            "nn.LazyLinear(…)"
        )
    return mixer

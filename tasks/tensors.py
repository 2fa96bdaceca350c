"""PyTorch as tasks name it: imported where something is computed first, not to name types.

A task says what it is, and prepares its data, without it; to import it takes a second.
"""

from typing import TYPE_CHECKING

__all__ = ["Tensor", "torch"]

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    import sys
    from importlib import import_module

    class _Later:
        """A module of this name, imported at the first use of something in it."""

        def __getattr__(self, name):
            return getattr(import_module("torch"), name)

    class _OfTorch(type):
        def __instancecheck__(cls, instance):
            there = sys.modules.get("torch")
            return there is not None and isinstance(instance, there.Tensor)

    class Tensor(metaclass=_OfTorch):
        """Stands for `torch.Tensor` in annotations, which shapes are compared with."""

    torch = _Later()

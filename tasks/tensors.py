"""PyTorch for tasks, imported at its first use in a computation.

The import takes a second. A task can state its facts and prepare its data without PyTorch.
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
        """Stands for the module torch; the first use of an attribute imports it."""

        def __getattr__(self, name):
            return getattr(import_module("torch"), name)

    class _OfTorch(type):
        def __instancecheck__(cls, instance):
            """Return whether `instance` is a torch.Tensor; False while torch is not imported."""
            imported = sys.modules.get("torch")
            return imported is not None and isinstance(instance, imported.Tensor)

    class Tensor(metaclass=_OfTorch):
        """Stands for `torch.Tensor` in annotations and in checks of shapes."""

    torch = _Later()

"""Weights that are shared out among processes: DTensors, recognised by their methods.

Their module takes half a second to import, which a process alone need not spend.
"""

from typing import Any

from torch import Tensor


def is_sharded(value: Any) -> bool:
    """Tell whether a value is a tensor of which this process holds a part."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def local_part(value: Tensor) -> Tensor:
    """Return what this process holds of a tensor: its part, or all."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local


def full_tensor(value: Tensor) -> Tensor:
    """Return all of a tensor; every process that holds a part must call."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


def gather_tree(tree: Any, *, keep: bool) -> Any:
    """Return a nest of values with every shared-out tensor whole, on the CPU. All ranks must call.

    Args:
        tree: Mappings, lists, tuples and values.
        keep: Whether this rank wants the result; others return what they have, and hold no more.
    """
    if is_sharded(tree):
        full = full_tensor(tree)
        return full.cpu() if keep else tree
    if isinstance(tree, dict):
        return {key: gather_tree(value, keep=keep) for key, value in tree.items()}
    if isinstance(tree, list):
        return [gather_tree(value, keep=keep) for value in tree]
    return tree


def like(value: Any, weight: Tensor) -> Any:
    """Return a tensor split up as `weight` is, if `weight` is split up and has the same shape."""
    if not is_sharded(weight) or not isinstance(value, Tensor) or value.shape != weight.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(weight, DTensor)
    return distribute_tensor(
        value.to(weight.device), weight.device_mesh, weight.placements, src_data_rank=None
    )

"""Weights that are shared out among processes: DTensors, known by what they offer.

Their module takes half a second to import, which a process alone need not spend.
"""

from typing import Any

from torch import Tensor


def parted(value: Any) -> bool:
    """Tell whether a value is a tensor of which this process holds a part."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def held(value: Tensor) -> Tensor:
    """Return what this process holds of a tensor: its part, or all."""
    own: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return own


def joined_up(value: Tensor) -> Tensor:
    """Return all of a tensor; every process that holds a part must call."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


def whole(tree: Any, *, keep: bool) -> Any:
    """Return a nest of values with every shared-out tensor whole, on the CPU. All ranks must call.

    Args:
        tree: Mappings, lists, tuples and values.
        keep: Whether this rank wants the result; others return what they have, and hold no more.
    """
    if parted(tree):
        full = joined_up(tree)
        return full.cpu() if keep else tree
    if isinstance(tree, dict):
        return {key: whole(value, keep=keep) for key, value in tree.items()}
    if isinstance(tree, list):
        return [whole(value, keep=keep) for value in tree]
    return tree


def like(value: Any, own: Tensor) -> Any:
    """Return a whole tensor parted as `own` is, where it is of its shape and that is parted."""
    if not parted(own) or not isinstance(value, Tensor) or value.shape != own.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(own, DTensor)
    return distribute_tensor(
        value.to(own.device), own.device_mesh, own.placements, src_data_rank=None
    )

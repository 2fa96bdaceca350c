"""Weights that are split among processes: DTensors, which are recognised by their methods.

Their module takes half a second to import, so only processes that need it import it.
"""

from typing import Any

from torch import Tensor


def is_sharded(value: Any) -> bool:
    """Return whether a value is a tensor that is split among processes."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def local_part(value: Tensor) -> Tensor:
    """Return the part of a tensor that this process has; of a whole tensor, the tensor itself."""
    local: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return local


def full_tensor(value: Tensor) -> Tensor:
    """Return the whole of a tensor; all processes that have a part must call this."""
    full: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return full


def gather_tree(tree: Any, *, keep: bool) -> Any:
    """Return nested values in which every split tensor is whole, on the CPU.

    All processes must call this.

    Args:
        tree: Mappings, lists, tuples and values.
        keep: Whether this process needs the result; other processes return their parts.
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

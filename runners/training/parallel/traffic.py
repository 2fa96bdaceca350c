"""Counts the bytes that one process sends to others."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Share = Callable[[int], float]
"""Bytes that one of n processes sends for each byte of an operation's largest tensors."""

SHARES: Mapping[str, Share] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "allreduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda n: (n - 1) / n,
}
"""For ring algorithms, which send no byte twice; by the beginning of an operation's name."""


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes that this process sends inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sent = 0.0
        self.calls: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, and count its bytes if it sends tensors between processes."""
        del types
        result = func(*args, **(kwargs or {}))
        if func.namespace in {"c10d", "_c10d_functional", "_c10d_functional_autograd"}:
            name = func.overloadpacket.__name__.strip("_")
            share = next((s for begin, s in SHARES.items() if name.startswith(begin)), None)
            if share is not None:
                self.calls[name] = self.calls.get(name, 0) + 1
                self.sent += _largest_bytes(result, args) * share(_group_size(args))
        return result


def _largest_bytes(result: Any, args: Any) -> int:
    """Return the bytes of an operation's result, or of its largest argument if that is more."""
    sizes = [
        sum(t.nbytes for t in tree_leaves(nest) if isinstance(t, Tensor))
        for nest in (result, *args)
    ]
    return max(sizes)


def _group_size(args: Any) -> int:
    """Return the size of the group among an operation's arguments, which is an object or a name."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(arg).size()
            except RuntimeError:
                continue
        if isinstance(arg, str):
            try:
                return int(cast(Any, distributed_c10d)._resolve_process_group(arg).size())
            except (RuntimeError, ValueError):
                continue
    return dist.get_world_size()

"""The kind of device (cpu, cuda) that decides into which pieces operations cut their work.

It is the kind of a tensor's device; for a meta tensor, the kind whose cost is being counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_assumed = "meta"


def device_kind(device: torch.device) -> str:
    """Return the type of `device`, or for "meta" the type that `assume_device_kind` has set."""
    return device.type if device.type != "meta" else _assumed


@contextmanager
def assume_device_kind(kind: str) -> Iterator[None]:
    """Treat meta tensors as if they were on a device of type `kind`; this is not thread-safe."""
    global _assumed  # noqa: PLW0603 - read where torch.compile traces, which knows no ContextVar
    before, _assumed = _assumed, kind
    try:
        yield
    finally:
        _assumed = before

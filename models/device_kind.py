"""For which kind of device work is cut into pieces.

That of a tensor; where it has no contents, the one that its cost is counted for.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_assumed = "meta"


def device_kind(device: torch.device) -> str:
    """Return `torch.device.type` of a device; of `meta`, what `assume_device_kind` says."""
    return device.type if device.type != "meta" else _assumed


@contextmanager
def assume_device_kind(kind: str) -> Iterator[None]:
    """Cut work on tensors without contents as on a kind of device. Not for several threads."""
    global _assumed  # noqa: PLW0603 - read where torch.compile traces, which knows no ContextVar
    before, _assumed = _assumed, kind
    try:
        yield
    finally:
        _assumed = before

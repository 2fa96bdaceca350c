"""Seeds of the parts of a model, and where parameters are drawn."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derive(seed: int, part: str) -> int:
    """Return the seed of one part of the model: parts draw alike whatever the others draw."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{part}".encode()).digest()[:8], "big") >> 1


@contextmanager
def drawing() -> Iterator[None]:
    """Draw parameters on the CPU (or the meta device), and leave the global random state alone."""
    meta = torch.get_default_device().type == "meta"
    with torch.random.fork_rng(devices=[]), torch.device("meta" if meta else "cpu"):
        yield

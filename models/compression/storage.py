"""Writes and reads the state of a model as a file, dense or without zeros.

It is a safetensors file, with shared tensors once. In a sparse file, tensors with enough zeros are
stored as one bit per number, which is 0 for a zero, and as the numbers that are not zero. That
takes 4 n (1 - s) + n / 8 bytes instead of 4 n, which is less if the fraction s of zeros is above
1/32. Both forms restore every bit.
"""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

BITS, NUMBERS = "bits", "numbers"
"""Names of the two tensors of a sparse file, which join all tensors without zeros."""


def write_state(state: Mapping[str, Tensor], path: Path, *, sparse: bool = False) -> int:
    """Write a model's state to a file, and return the size of the file in bytes.

    Args:
        state: Tensors by name.
        path: The file to write.
        sparse: Whether zeros of float32 tensors are omitted if that makes the file smaller.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}  # further names of tensors, and the name that is stored
    shapes: dict[str, list[int]] = {}  # of the tensors in `flat`
    first: dict[tuple[object, ...], str] = {}  # first name of each tensor
    flat: list[Tensor] = []  # tensors that are stored without zeros
    for name, value in state.items():
        tensor = value.detach().cpu()
        same = first.setdefault(_storage_key(value, name), name)
        if same != name:
            aliases[name] = same
        elif sparse and _smaller_without_zeros(tensor):
            shapes[name] = list(tensor.shape)
            flat.append(tensor.flatten())
        else:
            tensors[name] = tensor.contiguous().clone()
    if flat:
        numbers = torch.cat(flat)
        # -0.0 is stored as a number, because a bit of 0 restores +0.0.
        stored = (numbers != 0) | torch.signbit(numbers)
        tensors[BITS] = torch.from_numpy(np.packbits(stored.numpy()))
        tensors[NUMBERS] = numbers[stored]
    facts = {"aliases": json.dumps(aliases), "shapes": json.dumps(shapes)}
    save_file(tensors, path, metadata=facts)
    return path.stat().st_size


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the state in a file that `write_state` wrote."""
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if shapes := json.loads(facts["shapes"]):
        bits, numbers = state.pop(BITS), state.pop(NUMBERS)
        sizes = [prod(shape) for shape in shapes.values()]
        stored = np.unpackbits(bits.numpy(), count=sum(sizes)).astype(bool)
        flat = torch.zeros(sum(sizes), dtype=numbers.dtype)
        flat[torch.from_numpy(stored)] = numbers
        for (name, shape), part in zip(shapes.items(), torch.split(flat, sizes), strict=True):
            state[name] = part.view(shape)
    for name, same in json.loads(facts["aliases"]).items():
        state[name] = state[same]
    return state


def _storage_key(value: Tensor, name: str) -> tuple[object, ...]:
    """Return a key that is equal for two names of the same tensor."""
    if not value.numel():
        return (name,)
    storage = value.untyped_storage().data_ptr()
    return (storage, value.storage_offset(), value.shape, value.stride(), value.dtype)


def _smaller_without_zeros(value: Tensor) -> bool:
    """Return whether a float32 tensor takes fewer bytes as bits and nonzero numbers."""
    if value.dtype != torch.float32:
        return False
    # Each nonzero number takes 4 bytes, and each number a bit.
    return 4 * int(torch.count_nonzero(value)) + value.numel() / 8 < 4 * value.numel()

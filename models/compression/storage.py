"""Writes and reads the state of a model as a file, dense or without zeros.

It is a safetensors file, with shared tensors once. In a sparse file, tensors with enough zeros are
stored as one bit per number, which is 0 for a zero, and as the numbers that are not zero. Of n
numbers with b bytes each, that takes b n (1 - s) + n / 8 bytes instead of b n, which is less if the
fraction s of zeros is above 1/32 for float32, and above 1/8 for int8. Both forms restore every bit.
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
"""Names of the two tensors of a sparse file that join all tensors of one type without zeros."""
SPARSE = ("float32", "int8")
"""Types of tensors that can be stored without zeros: the ends of the names of these two."""


def write_state(state: Mapping[str, Tensor], path: Path, *, sparse: bool = False) -> int:
    """Write a model's state to a file, and return the size of the file in bytes.

    Args:
        state: Tensors by name.
        path: The file to write.
        sparse: Whether zeros of float32 and int8 tensors are omitted if that saves bytes.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}  # further names of tensors, and the name that is stored
    shapes: dict[str, dict[str, list[int]]] = {kind: {} for kind in SPARSE}  # of those in `flat`
    first: dict[tuple[object, ...], str] = {}  # first name of each tensor
    flat: dict[str, list[Tensor]] = {kind: [] for kind in SPARSE}  # stored without zeros
    for name, value in state.items():
        tensor = value.detach().cpu()
        same = first.setdefault(_storage_key(value, name), name)
        if same != name:
            aliases[name] = same
        elif sparse and _smaller_without_zeros(tensor):
            kind = _kind(tensor)
            shapes[kind][name] = list(tensor.shape)
            flat[kind].append(tensor.flatten())
        else:
            tensors[name] = tensor.contiguous().clone()
    for kind, parts in flat.items():
        if parts:
            numbers = torch.cat(parts)
            # -0.0 is stored as a number, because a bit of 0 restores +0.0.
            stored = (numbers != 0) | torch.signbit(numbers)
            tensors[BITS + kind] = torch.from_numpy(np.packbits(stored.numpy()))
            tensors[NUMBERS + kind] = numbers[stored]
    facts = {"aliases": json.dumps(aliases), "shapes": json.dumps(shapes)}
    save_file(tensors, path, metadata=facts)
    return path.stat().st_size


def read_state(path: Path) -> dict[str, Tensor]:
    """Return the state in a file that `write_state` wrote."""
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for kind, shapes in json.loads(facts["shapes"]).items():
        if shapes:
            bits, numbers = state.pop(BITS + kind), state.pop(NUMBERS + kind)
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


def _kind(value: Tensor) -> str:
    """Return the name of the type of a tensor, such as float32."""
    return str(value.dtype).removeprefix("torch.")


def _smaller_without_zeros(value: Tensor) -> bool:
    """Return whether a tensor takes fewer bytes as bits and nonzero numbers."""
    # Each nonzero number takes all its bytes, and each number a bit.
    size, nonzero = value.element_size(), int(torch.count_nonzero(value))
    return _kind(value) in SPARSE and size * nonzero + value.numel() / 8 < size * value.numel()

"""What a model takes on disk: the file that is written, dense or without its zeros.

A safetensors file of the state, shared tensors once. Sparse, the tensors with enough zeros are kept
as one bit for each number, whether it is zero, and the numbers that are not: 4 n (1 - s) + n / 8
bytes in place of 4 n, which is less for any share s of zeros above 1/32. Both come back bit by bit.
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
"""Tensors of a sparse file: of all tensors with zeros left out, one after the other."""


def write_state(state: Mapping[str, Tensor], path: Path, *, sparse: bool = False) -> int:
    """Write a state to a file; return its bytes.

    Args:
        state: Of a model.
        path: Of the file.
        sparse: Whether zeros of single precision are left out where that is smaller.
    """
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    shapes: dict[str, list[int]] = {}
    first: dict[tuple[object, ...], str] = {}
    flat: list[Tensor] = []
    for name, value in state.items():
        tensor = value.detach().cpu()
        same = first.setdefault(_place(value, name), name)
        if same != name:
            aliases[name] = same
        elif sparse and _smaller_without_zeros(tensor):
            shapes[name] = list(tensor.shape)
            flat.append(tensor.flatten())
        else:
            tensors[name] = tensor.contiguous().clone()
    if flat:
        numbers = torch.cat(flat)
        # -0.0 is a number: its sign would be lost with its bits
        there = (numbers != 0) | torch.signbit(numbers)
        tensors[BITS] = torch.from_numpy(np.packbits(there.numpy()))
        tensors[NUMBERS] = numbers[there]
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
        there = np.unpackbits(bits.numpy(), count=sum(sizes)).astype(bool)
        flat = torch.zeros(sum(sizes), dtype=numbers.dtype)
        flat[torch.from_numpy(there)] = numbers
        for (name, shape), part in zip(shapes.items(), torch.split(flat, sizes), strict=True):
            state[name] = part.view(shape)
    for name, same in json.loads(facts["aliases"]).items():
        state[name] = state[same]
    return state


def _place(value: Tensor, name: str) -> tuple[object, ...]:
    """Return a key that is equal for two names of the same tensor."""
    if not value.numel():
        return (name,)
    storage = value.untyped_storage().data_ptr()
    return (storage, value.storage_offset(), value.shape, value.stride(), value.dtype)


def _smaller_without_zeros(value: Tensor) -> bool:
    if value.dtype != torch.float32:
        return False
    return 4 * int(torch.count_nonzero(value)) + value.numel() / 8 < 4 * value.numel()

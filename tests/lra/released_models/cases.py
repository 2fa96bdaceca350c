"""Weights and inputs of whole models by rules, which a released code and ours are given alike."""

import re
import zlib
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

LENGTH = 256
"""Of every sequence: a fourth of the shortest task's, so that comparisons stay fast."""
TASKS = ("listops", "text", "retrieval", "image", "pathfinder")
LENGTHS = {
    ("skyformer", "big_bird"): {
        **{"listops": 2048, "text": 4096, "retrieval": 4096},
        **dict.fromkeys(TASKS[3:], 1024),
    },
    ("rotary", "image"): 1024,
    ("lra_code", "big_bird"): dict.fromkeys(TASKS, 512),
    ("lra_code", "longformer"): dict.fromkeys(TASKS, 640),
    ("lra_code", "tlb"): {"listops": 300, "text": 250, "retrieval": 250},
    ("lra_code", "sinkhorn"): dict.fromkeys(TASKS[:3], 250),
}
"""Where blocks have to be whole, or so many that some are not seen, by task."""
LONG = 1024
"""From here on, short rows are as long in proportion."""
ROWS = 3
GAIN = 1.5
"""Of every matrix, so that weights of attention are far from equal."""
SHARE_OF_PADDING = {"image": 0.2, "pathfinder": 0.8, "pathfinder64": 0.8, "pathx": 0.8,
                    "path256": 0.8}  # fmt: skip
"""Black pixels, which stand anywhere; elsewhere padding stands at the end."""
SIDES = {"image": 32, "pathfinder": 16, "pathx": 16}
"""Of a picture, where levels of grey are real numbers."""
HIGHEST = {"listops": 15}
"""Ids of tokens, from 1; elsewhere as many as bytes or levels of grey."""
S4D = ["model.layer.mode=diag", "model.layer.measure=diag-legs"]
"""What makes S4D-LegS of S4, as words for the code of its tag v3.0.0."""
HASH_SEED = 7
SYMBOLS = (*"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""Words of ListOps, from id 1."""


def generator(name: str) -> torch.Generator:
    """Return a source of draws that belongs to a name."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


@lru_cache(maxsize=128)  # of one task, whose models share most of them
def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the weights of a parameter, by its name in the released code: float64, not to change.

    Matrices are drawn from N(0, GAIN^2 / columns), vectors from N(0, 0.01), gains and variances of
    norms around 1, tables from N(0, 1 / 4), draws of features from N(0, 1).
    """
    drawn = torch.randn(shape, generator=generator(name), dtype=torch.float64)
    if "projection_matrix" in name:
        return drawn
    if "embedding" in name:
        return drawn / 2
    if len(shape) > 1:
        return drawn * GAIN * shape[-1] ** -0.5
    gains = ("weight", "scale", "scalar", "running_var")
    return 0.1 * drawn + ("norm" in name.lower() and name.endswith(gains))


def arena_name(name: str) -> str:
    """Return a parameter's name without what its family or task calls its part of a model."""
    for theirs, here in (
        (r"\w*Attention_[12]", "attention"), (r"^(stateful_)?encoder/|_sliding_window", ""),
        ("horizontal_block_0_self", "encoderblock"), ("horizontal_block_0_cross", "looks"),
        ("vertical_block_0_cross", "updates"),
    ):  # fmt: skip
        name = re.sub(theirs, here, name)
    return name


def renamed(name: str, names: Mapping[str, str]) -> str:
    """Return what a released code calls a parameter, by patterns of our names."""
    for pattern, theirs in names.items():
        if match := re.fullmatch(pattern, name):
            return theirs.format(*match.groups())
    raise KeyError(name)


def apart(found: np.ndarray, theirs: np.ndarray) -> float:
    """Return the largest difference of logits, relative to the largest logit."""
    return float(np.abs(found - theirs).max() / np.abs(theirs).max())


def tokens(task: str, length: int = LENGTH, *, equal: bool = False) -> Tensor:
    """Return ids [ROWS, sequences, length] of a task, where 0 is padding.

    Args:
        task: Its name.
        length: Of the longest.
        equal: Whether the longest first text and the longest second one of pairs are as long.
    """
    draws, parts = generator(task), 2 if task == "retrieval" else 1
    shape = (ROWS, parts, length)
    ids = torch.randint(1, HIGHEST.get(task, 255) + 1, shape, generator=draws)
    if task in SHARE_OF_PADDING:
        drawn = torch.rand(shape, generator=draws, dtype=torch.float32)
        return ids.where(drawn > SHARE_OF_PADDING[task], 0)
    times = length // LENGTH if length >= LONG else 1
    lengths = torch.tensor([length, 150 * times, 61 * times])
    if equal:
        lengths = torch.stack([lengths.roll(1 + part) for part in range(parts)], dim=1)
    else:
        lengths = lengths[:, None].roll(1) - 7 * torch.arange(parts)
    return ids.where(torch.arange(length) < lengths[..., None], 0)


def inputs(protocol: str, model: str, task: str) -> Tensor:
    """Return the ids that a model of a protocol answers, as many as it needs."""
    ids = tokens(task, LENGTHS.get((protocol, model), {}).get(task, LENGTH))
    if protocol == "lra_code" and task in SHARE_OF_PADDING:
        ids[0, :, 0] = 0  # whose mask the CLS vector has
    return ids


def printable(task: str, length: int = LENGTH) -> Tensor:
    """Return ids as those of `tokens`, but that bytes of texts are letters, digits and signs."""
    ids = tokens(task, length)
    return ids if task == "listops" else ids.where(ids == 0, 33 + ids % 95)


def text(task: str, ids: Tensor) -> str:
    """Return a sequence as its file has it."""
    real = ids[ids > 0].tolist()
    if task == "listops":
        return " ".join(SYMBOLS[each - 1] for each in real)
    return "".join(chr(each - 1) for each in real)


def grey(task: str) -> Tensor:
    """Return levels of grey [ROWS, side, side] of a task, many of them black."""
    side = SIDES[task]
    return tokens(task, side**2).reshape(ROWS, side, side)


def uniforms(layer: int, total: int) -> Tensor:
    """Return the uniform numbers that a layer of the Skyformer chooses its landmarks by."""
    return torch.rand(total, generator=generator(f"uniforms {layer}"), dtype=torch.float64)
